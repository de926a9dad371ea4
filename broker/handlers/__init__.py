"""Request handlers, with one module or package per family of APIs. Each handler has the signature
`(node, ctx) -> response`, and `table` lists all handlers.
"""
