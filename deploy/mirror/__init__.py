"""Copy topics, groups and ACLs of another cluster: `penstock mirror`."""
