"""Log compaction of a topic by a job outside the brokers."""
