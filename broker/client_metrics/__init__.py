"""Client metrics (KIP-714): subscriptions, pushes, and the OTLP receiver."""
