"""Format certificate subjects as Java does, so that mapping rules have the same effect:
`CN=orders,OU=Services,O=Example,C=DE`. Pure.

The parts are in RFC 2253 order, last part first. Types for which the RFC defines no short name are
formatted as numbers with a hexadecimal value (an e-mail address: `1.2.840.113549.1.9.1=#1611...`).
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
_NESTED: Final = 3
"""Nesting depth of a name: a sequence of sets of sequences, each of which contains a type and a
value.
"""


def distinguished_name(certificate_der: bytes) -> str:
    """Return the subject of a certificate. Raises ValueError if it cannot be parsed."""
    from cryptography.x509 import load_der_x509_certificate

    try:
        return rfc2253(load_der_x509_certificate(certificate_der).subject)
    except Exception as error:
        # In addition to ValueError, cryptography raises TypeError, InvalidVersion and other
        # exceptions.
        raise ValueError(f"{type(error).__name__}: {error}") from error


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
    """Return the encoded value of an attribute, by encoding a name that contains only this
    attribute and stripping the type.
    """
    from cryptography.x509 import Name

    name = Name([attribute]).public_bytes()
    at = 0
    for _ in range(_NESTED):
        at, _ = _contents(name, at)
    start, size = _contents(name, at)
    return name[start + size :]


def _contents(data: bytes, at: int) -> tuple[int, int]:
    """Return the start and size of the contents of the DER value at `at`."""
    size = data[at + 1]
    if size < _ASN1_LONG:
        return at + 2, size
    count = size - _ASN1_LONG
    return at + 2 + count, int.from_bytes(data[at + 2 : at + 2 + count], "big")
