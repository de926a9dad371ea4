"""OpenTelemetry traces of produce requests and moves (docs/reference/traces.md,
docs/design/observability.md). `set_up` imports the other modules on demand.
"""
