"""Authenticate clients: TLS files, SASL mechanisms, users and the names of principals."""
