"""Quotas of clients: rates, whom a quota is for, and for how long a client has to wait."""
