"""Explain failed connections to the store. Pure.

obstore has no classes for errors of reqwest, hyper and rustls, so their names are parsed from the
error's debug output, whose format is pinned by tests.
"""

import re
from collections.abc import Mapping
from typing import Final

_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_PRESENTED: Final = re.compile(r"presented: \[(.*?)\]", re.DOTALL)
_HOSTS: Final = re.compile(r'(?:DnsName|IpAddress)\(\\?"?([^\\")]+)')

_CERTIFICATE_FAULTS: Final = {
    "UnknownIssuer": (
        "no trusted CA signed the store's certificate. Name a PEM file with the certificate of its"
        " CA in AWS_CA_BUNDLE"
    ),
    "Expired": "the store's certificate has expired. Renew it",
    "NotValidYet": (
        "the store's certificate is not valid yet. Compare the clocks of this machine and the store"
    ),
    "NotValidForName": (
        "the store's certificate does not name the host of this address. Use an address that it"
        " names as `endpoint`, or add the host to its subject alternative names"
    ),
    "Revoked": "the store's certificate has been revoked. Replace it",
    "CaUsedAsEndEntity": "the store's certificate is that of a CA. Give the store one of its own",
}
_OTHER_CERTIFICATE: Final = "the store's certificate is not valid"
_OTHER_FAULTS: Final = (
    (
        "InvalidContentType",
        "the port does not use TLS. Write `http://` in `endpoint`, or the port that uses TLS",
    ),
    (
        re.compile(r"AlertReceived\(\s*(?:ProtocolVersion|HandshakeFailure)|PeerIncompatible"),
        "the store and this client have no version or cipher of TLS in common. Enable TLS 1.2 or"
        " 1.3 on the store",
    ),
)
_PROXIES: Final = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY")


def tls_fault(dump: str) -> str | None:
    """Return the store's TLS problem and a remedy, or None if another attempt may succeed. After
    such a fault, nothing was sent.
    """
    found = _CERTIFICATE.search(dump)
    if found is not None:
        name = found[1].removesuffix("Context")
        text = _CERTIFICATE_FAULTS.get(name, f"{_OTHER_CERTIFICATE} ({name})")
        presented = _PRESENTED.search(dump)
        hosts = _HOSTS.findall(presented[1]) if presented else []
        return f"{text}. It names {', '.join(hosts)}" if hosts else text
    for sign, text in _OTHER_FAULTS:
        if sign in dump if isinstance(sign, str) else sign.search(dump):
            return text
    return None


def hint(dump: str, endpoint: str, environ: Mapping[str, str]) -> str:
    """Return possible reasons for a connection that ended without a response, or "". Another
    attempt may succeed.
    """
    hints: list[str] = []
    if "dns error" in dump:
        hints.append("if it never resolves, check the account or the endpoint of the store URL")
    if "tls handshake eof" in dump:
        hints.append(
            "the store ended the TLS handshake: if it always does, it needs TLS 1.2 or 1.3"
        )
    if "TimedOut" in dump and "kind: Connect" in dump and endpoint.startswith("https:"):
        hints.append("if the port does not use TLS, write http:// in endpoint")
    if "IncompleteMessage" in dump and endpoint.startswith("http:"):
        hints.append("if the store uses TLS, write https:// in endpoint")
    proxy = next((name for name in _PROXIES if environ.get(name)), None)
    if proxy is not None and "kind: Connect" in dump:
        hints.append(f"{proxy} is set: add the store's host to NO_PROXY if it needs no proxy")
    return "; ".join(hints)
