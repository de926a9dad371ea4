"""Recover the WAL of a dead broker, and tell a lost slot from a free one."""
