"""Fetch the parts of objects that slices name. Needs neither Arrow nor Spark."""
