"""Address a receiver of OTLP over HTTP. Source: OTLP 1.x, "OTLP/HTTP Request"."""


def url_of(endpoint: str, path: str) -> str:
    """Return the URL of a signal. path: what OTLP says, for an endpoint without a path."""
    _, _, rest = endpoint.partition("://")
    return endpoint if "/" in rest.rstrip("/") else endpoint.rstrip("/") + path
