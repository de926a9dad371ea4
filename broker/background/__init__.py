"""Background tasks of a broker: log compaction, retention, recovery of the WAL of dead brokers
(`recovery`), quotas, load reports.
"""
