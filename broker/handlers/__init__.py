"""Request handlers: one module or package per family of APIs. Each handler is
`(node, ctx) -> response`, and `table` lists them.
"""
