"""Run a cluster on real data and check the result."""
