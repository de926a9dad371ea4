"""Share groups (KIP-932): consumers that share partitions record by record, as from a queue."""
