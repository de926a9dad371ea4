"""Transactions for administrators: what coordinators know, and what partitions know."""
