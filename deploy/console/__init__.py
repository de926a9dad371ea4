"""Serve pages about a cluster to browsers, for `penstock console`."""
