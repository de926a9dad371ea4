"""Fetch the parts of objects referenced by slices. Needs neither Arrow nor Spark."""
