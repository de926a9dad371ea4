"""Topics: creation, deletion, partitions, forks and snapshots, and the deletion of records."""
