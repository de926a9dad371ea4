"""One module per family of requests; each handler is `(node, ctx) -> response`."""
