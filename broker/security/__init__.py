"""Client authentication and authorization: TLS, SASL, users and principals."""
