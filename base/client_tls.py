"""Make the TLS context with which a client verifies a server."""

import ssl


def client_tls(ca: str = "") -> ssl.SSLContext:
    """Return a context that verifies certificates and names of hosts. ca: a PEM file of CAs;
    empty: the CAs of the system. Raises OSError or ValueError if the file cannot be used.

    From 3.13 on, Python by default refuses certificates without all key identifiers of RFC 5280,
    which many a private CA leaves out. librdkafka and Java accept these, and so does this context.
    """
    context = ssl.create_default_context(cafile=ca or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
