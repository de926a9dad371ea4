"""Request handlers, with one module or package per family of APIs. Each handler is called as
`(node, ctx) -> response`, and `table` lists them all.
"""
