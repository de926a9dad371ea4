"""Handlers of ShareFetch, ShareAcknowledge and the share coordinator."""
