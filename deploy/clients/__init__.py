"""Connect commands to a cluster: Kafka, controller, metadata."""
