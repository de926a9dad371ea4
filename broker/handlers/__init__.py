"""Request handlers: one module per family of requests. Each handler is `(node, ctx) -> response`,
and `table` lists them.

The read path begins in `fetch`; `cold_reads` reads older records from the object store.
"""
