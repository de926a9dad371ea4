"""Transactions for administrators: the states at coordinators and in partitions."""
