"""Fetch: `handler` responds from the cache, `cold_reads` from the object store, `tail_fetch` to
brokers that serve the rack.
"""
