"""Show continuously what a cluster does, for `penstock top`."""
