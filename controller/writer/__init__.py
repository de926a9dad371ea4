"""The single writer of the active controller, the sessions of brokers, and the ages of records."""
