"""Fetch: `handler` responds from the cache, `cold_reads` reads from the object store, and
`tail_fetch` responds to brokers that serve consumers in another rack.
"""
