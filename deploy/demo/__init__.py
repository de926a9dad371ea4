"""Run a cluster on real data and verify the result."""
