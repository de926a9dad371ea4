"""Request handlers: one module per family of requests. Each handler is `(node, ctx) ->
response`.
"""
