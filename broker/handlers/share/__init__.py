"""Handlers of ShareFetch, ShareAcknowledge and the APIs of the share coordinator."""
