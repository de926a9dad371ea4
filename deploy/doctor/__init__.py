"""Find what is wrong with a deployment, and how to fix it (ADR 0030)."""
