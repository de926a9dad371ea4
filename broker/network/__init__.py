"""Sockets, frames and dispatch: from bytes to handlers and back."""
