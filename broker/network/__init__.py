"""Sockets, frames and request dispatch."""
