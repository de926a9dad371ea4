"""Handlers of group APIs."""
