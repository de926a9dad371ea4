"""Fetch the parts of objects referenced by slices. Requires neither Arrow nor Spark."""
