"""The metadata quorum: records, image, managers, journal and the gRPC face that brokers talk to."""
