"""Diagnose a deployment (docs/design/observability.md)."""
