"""Explain failed OpenSSL handshakes: the problem and a remedy. Pure. This relies on the error texts
of OpenSSL and Python's `ssl`, including those inside errors of other libraries.
"""

from typing import Final

_FAULTS: Final = (
    (("certificate has expired",), "its certificate has expired: renew it"),
    (
        ("certificate is not yet valid",),
        "its certificate is not valid yet: compare the clocks of both machines",
    ),
    (
        ("Hostname mismatch", "IP address mismatch", "doesn't match"),
        (
            "its certificate does not name the host of this address: use an address that it names,"
            " or add the host to its subject alternative names"
        ),
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed"),
        "no trusted CA signed its certificate: name a PEM file with the certificate of its CA in",
    ),
    (
        ("CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE"),
        "it refuses this side's certificate, or wants one: name one that its CA signed",
    ),
    (
        ("UNSUPPORTED_PROTOCOL", "PROTOCOL_VERSION", "HANDSHAKE_FAILURE", "NO_PROTOCOLS"),
        "both sides have no version or cipher of TLS in common: enable TLS 1.2 or 1.3 there",
    ),
    (
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "record layer failure"),
        "its port does not use TLS: use the port that does, or connect without TLS",
    ),
    (
        ("UNEXPECTED_EOF", "EOF occurred", "ConnectionResetError"),
        (
            "it closed the connection during the handshake: its port does not use TLS, or it has no"
            " version of TLS in common with this side"
        ),
    ),
)


def explain(error_text: str, *, ca_setting: str) -> str:
    """Return the problem and a remedy, or "" if unknown.

    ca_setting: the name of the setting for the file with the trusted CAs.
    """
    for signs, text in _FAULTS:
        if any(sign in error_text for sign in signs):
            return f"{text} {ca_setting}" if text.endswith(" in") else text
    return ""


_WITHOUT_TLS: Final = ("\\x15\\x03", "Server disconnected", "closed connection without response")
"""Errors of plain HTTP requests to a server with TLS, which sends an alert or closes the
connection.
"""


def reason_of(error_text: str, url: str, *, ca_setting: str) -> str:
    """Return the reason why a request to the URL of an HTTP server failed: the TLS problem,
    otherwise the error message. ca_setting: as for `explain`.
    """
    if url.startswith("https:"):
        return explain(error_text, ca_setting=ca_setting) or error_text
    if any(sign in error_text for sign in _WITHOUT_TLS):
        return f"{error_text}: if its port uses TLS, use https://"
    return error_text
