"""Generate the codec of the Kafka protocol."""
