"""Authentication and authorization of clients: TLS, SASL, users and principals."""
