"""Write the subject of a certificate as Java does, so that mapping rules mean the same.

    CN=orders,OU=Services,O=Example,C=DE

Invariant: pure. The order is that of RFC 2253: the last part of the certificate comes first. Types
without a short name there are numbers, with their value in hexadecimal, such as
`1.2.840.113549.1.9.1=#1611...` for an e-mail address.
Source: java.security X500Principal.getName(RFC2253), which Kafka's DefaultKafkaPrincipalBuilder
uses.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.x509 import Name, NameAttribute

_SHORT: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_ESCAPED: Final = {letter: "\\" + letter for letter in ',=+<>#;"\\'} | {"\0": "\\00"}
_ASN1_LONG: Final = 0x80


def distinguished_name(certificate_der: bytes) -> str:
    """Return the subject of a certificate. Raises ValueError if it cannot be read."""
    from cryptography.x509 import load_der_x509_certificate

    return rfc2253(load_der_x509_certificate(certificate_der).subject)


def rfc2253(name: "Name") -> str:
    parts = ["+".join(_attribute(item) for item in part) for part in name.rdns]
    return ",".join(reversed(parts))


def _attribute(attribute: "NameAttribute[str | bytes]") -> str:
    oid = attribute.oid.dotted_string
    short = _SHORT.get(oid)
    if short is None:
        return f"{oid}=#{_der(attribute).hex()}"
    return f"{short}={_escaped(_value(attribute))}"


def _value(attribute: "NameAttribute[str | bytes]") -> str:
    value = attribute.value
    return value if isinstance(value, str) else value.hex()


def _escaped(value: str) -> str:
    text = "".join(_ESCAPED.get(letter, letter) for letter in value)
    if text.startswith(" "):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1:
        text = text[:-1] + "\\ "
    return text


def _der(attribute: "NameAttribute[str | bytes]") -> bytes:
    data = attribute.value
    value = data.encode() if isinstance(data, str) else data
    tag = attribute._type.value  # no public attribute has the ASN.1 type
    size = len(value)
    if size < _ASN1_LONG:
        return bytes((tag, size)) + value
    count = (size.bit_length() + 7) // 8
    return bytes((tag, _ASN1_LONG | count)) + size.to_bytes(count, "big") + value
