"""Topics: creation, deletion, partitions, forks and snapshots, and record deletion."""
