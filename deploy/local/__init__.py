"""A whole cluster on one machine: planned as values, run as processes of their own, watched, and
taken down without a trace.
"""
