"""Everything about running it: the `penstock` command, the local cluster, the demo."""
