"""Client quotas: rates, entities, and throttle times."""
