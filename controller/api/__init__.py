"""The controller's API over gRPC. Brokers import this package and `controller.metadata`; the server
is `controller.active.server`.
"""
