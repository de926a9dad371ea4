"""Log compaction of a whole topic by a job outside of the brokers."""
