"""Compaction: ranges of our own streams move out of WAL objects and crowds of small objects into
few larger ones.
"""
