"""OpenTelemetry traces of produce requests and moves (docs/reference/traces.md, ADR 0029). `set_up`
imports the rest on demand.
"""
