"""Rules that map certificate subjects to users, with examples from Kafka's
documentation and tests.
"""

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID, ObjectIdentifier

from penstock.broker.security.distinguished_names import rfc2253
from penstock.broker.security.principal_rules import PrincipalRules

KAFKA = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("OU=JavaSoft,CN=duke,O=Sun", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems", "OU=JavaSoft,O=Sun Microsystems"),
    ],
)
def test_the_first_matching_rule_applies(subject: str, name: str) -> None:
    assert PrincipalRules.parse(KAFKA).name_of(subject) == name


@pytest.mark.parametrize(
    ("replacement", "name"),
    [
        ("$1", "a"),
        ("$1@$2", "a@b"),
        ("$1@$3", "a@$3"),
        ("$12", "a2"),
        (r"\$1", "$1"),
        ("$0", "CN=a,O=b"),
        ("fixed", "fixed"),
    ],
)
def test_group_references_are_replaced(replacement: str, name: str) -> None:
    rules = PrincipalRules.parse(f"RULE:CN=(.*),O=(.*)/{replacement}/")
    assert rules.name_of("CN=a,O=b") == name


def test_a_name_without_a_matching_rule_has_no_user() -> None:
    assert PrincipalRules.parse("RULE:^CN=(.*),O=here$/$1/").name_of("CN=x,O=there") is None


def test_a_rule_must_match_the_whole_name() -> None:
    assert PrincipalRules.parse("RULE:CN=admin/admin/").name_of("CN=admin,O=elsewhere") is None


def test_rules_match_in_linear_time() -> None:
    """A backtracking matcher would practically never finish."""
    assert PrincipalRules.parse("RULE:(a+)+b/$1/").name_of("a" * 1_000) is None


def test_only_the_first_digits_of_a_long_group_reference_count() -> None:
    name = PrincipalRules.parse(f"RULE:CN=(.*)/${'1' * 5_000}/").name_of("CN=a")
    assert name == "a" + "1" * 4_999


def test_without_rules_the_user_is_the_whole_name() -> None:
    assert PrincipalRules.parse("").name_of("CN=x") == "CN=x"


@pytest.mark.parametrize(
    "text", ["RULE:^CN=(.*)$", "RULE:a/b", "default", "RULE:(/$1/", "RULE:a/b/X", "DEFAULT DEFAULT"]
)
def test_invalid_rules_are_reported(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        PrincipalRules.parse(text)


def name(*parts: tuple[ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(*part, _validate=False) for part in parts])


def test_names_are_formatted_like_in_java() -> None:
    """The expected values are those of X500Principal.getName() in Java 17."""
    subject = name(
        (NameOID.COUNTRY_NAME, "DE"),
        (NameOID.STATE_OR_PROVINCE_NAME, "Berlin"),
        (NameOID.ORGANIZATION_NAME, "A, B & C"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "#1"),
        (NameOID.EMAIL_ADDRESS, "a@b.c"),
        (NameOID.COMMON_NAME, "me"),
    )
    assert rfc2253(subject) == (
        "CN=me,1.2.840.113549.1.9.1=#16056140622e63,OU=\\#1,O=A\\, B & C,ST=Berlin,C=DE"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (" lead trail ", "\\ lead trail\\ "),
        ("  ", "\\ \\ "),
        ("a  b", "a  b"),
        ("Jürgen", "Jürgen"),
        ('a+b<c>d;e"f\\g#h', 'a\\+b\\<c\\>d\\;e\\"f\\\\g\\#h'),
        ("a\0b", "a\\00b"),
    ],
)
def test_values_are_escaped_like_in_java(value: str, written: str) -> None:
    assert rfc2253(name((NameOID.COMMON_NAME, value))) == f"CN={written}"


def test_one_attribute_of_a_name_cannot_imitate_another() -> None:
    """A comma in a value is escaped, so `CN=x,OU=admins` in one value is not an OU."""
    assert rfc2253(name((NameOID.COMMON_NAME, "x,OU=admins"))) == "CN=x\\,OU\\=admins"
