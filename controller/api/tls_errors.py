"""Explain failed TLS connections to controllers. gRPC has no error codes for these failures, so
this module parses the error texts of gRPC and BoringSSL.
"""

from typing import Final

_FAILED: Final = "failed to connect"
"""Prefix of gRPC's error detail when no connection could be established."""

_WITH_TLS: Final = (
    (
        "certificate has expired",
        "the controller's certificate has expired: renew it",
    ),
    (
        "certificate is not yet valid",
        "the controller's certificate is not valid yet: compare the clocks of both machines",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        (
            "no CA of controller.ssl.ca.location signed the controller's certificate: use the"
            " same CA on both sides"
        ),
    ),
    (
        "Hostname Verification",
        (
            "the controller's certificate does not name the host of this address: add it to the"
            " subject alternative names, or use an address that it contains"
        ),
    ),
    (
        "WRONG_VERSION_NUMBER",
        "the controller does not use TLS: set controller.ssl.* on all nodes, or on none",
    ),
    (
        "Socket closed",
        (
            "the controller closed the connection during the TLS handshake. It refuses this side's"
            " certificate if another CA signed it or it has expired: the standard error of the"
            " controller has a line 'Handshake failed' with the reason"
        ),
    ),
)
_WITHOUT_TLS: Final = (
    (
        "Socket closed",
        (
            "the controller closed the connection immediately: if it uses TLS, set"
            " controller.ssl.certificate.location, controller.ssl.key.location and"
            " controller.ssl.ca.location here"
        ),
    ),
)


def explain(detail: str, *, has_tls: bool) -> str:
    """Return the problem and its solution, or "" if the failure is unrelated to TLS.

    detail: detail of gRPC's UNAVAILABLE error. has_tls: whether this side uses TLS.
    """
    if not detail.startswith(_FAILED):
        return ""
    known = _WITH_TLS if has_tls else _WITHOUT_TLS
    return next((text for part, text in known if part in detail), "")
