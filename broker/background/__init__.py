"""Background tasks of a broker: log compaction, retention, recovery, quotas, load reports."""
