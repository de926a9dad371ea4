"""Records as text for `penstock produce` and `penstock consume`."""
