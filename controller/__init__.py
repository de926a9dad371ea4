"""The metadata quorum: records, image, managers, journal and the gRPC face that brokers talk to."""

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.controller: the folder controller is no package of its own")
