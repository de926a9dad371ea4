"""Background tasks of a broker: log compaction, retention, WAL recovery for dead brokers, quotas
and load reports.
"""
