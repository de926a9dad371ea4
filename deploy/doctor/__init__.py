"""Find what is wrong with a deployment, and how to fix it (docs/design/observability.md)."""
