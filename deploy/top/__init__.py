"""Live view of a cluster for `penstock top`."""
