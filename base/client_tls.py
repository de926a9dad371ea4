"""TLS contexts for clients that verify a server."""

import ssl


def client_tls(ca: str = "") -> ssl.SSLContext:
    """Return a context that verifies certificates and host names. ca: a PEM file of CAs; empty: the
    CAs of the operating system. Raises OSError or ValueError if the file is unusable.

    By default, Python 3.13 and later reject certificates that lack any of the key identifiers of
    RFC 5280, which many private CAs omit. librdkafka and Java accept such certificates, and so does
    this context.
    """
    context = ssl.create_default_context(cafile=ca or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
