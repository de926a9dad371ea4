"""OpenTelemetry traces of produce requests and of moves: docs/traces.md, ADR 0029. `set_up` imports the rest when it is wanted."""
