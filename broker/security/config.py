"""Settings for client authentication and authorization.

A `SecurityConfig` is validated when it is created, including the settings of each listener.
`protocols` checks that they match the listeners; files are checked when they are read.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from penstock.base.acls import STANDARD_AUTHORIZER, is_authorizer
from penstock.base.listeners import (
    ListenerKey,
    SecurityProtocol,
    check_known,
    own_values,
    split_key,
)
from penstock.base.principal import parse_principals
from penstock.base.scram import SCRAM_BY_NAME
from penstock.base.settings import HIDDEN, Kind, Setting, SettingInvalid, check, fields_of
from penstock.broker.security.principal_rules import PrincipalRules
from penstock.protocol.sasl.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
AUTH_NONE: Final = "none"
AUTH_REQUESTED: Final = "requested"
AUTH_REQUIRED: Final = "required"
HTTPS: Final = "https"
_TLS: Final = "ssl."
_CLIENT_AUTH: Final = "ssl.client.auth"
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""See RFC 6749."""
_URLS: Final = ("http://", "https://", "file:")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Authentication and authorization of clients and brokers. Times are in milliseconds."""

    listener_security_protocol_map: Annotated[
        tuple[str, ...], Setting("listener.security.protocol.map", Kind.LIST)
    ] = ()
    """NAME:PROTOCOL for each listener whose name is not itself a protocol. Protocols are PLAINTEXT,
    SSL, SASL_PLAINTEXT and SASL_SSL. Without a map, all other listener names use PLAINTEXT.
    """

    inter_broker_listener_name: Annotated[str, Setting("inter.broker.listener.name", Kind.TEXT)] = (
        ""
    )
    """Listener that brokers use to connect to each other, with the protocol of that listener.
    Empty: the first listener of each broker.
    """

    ssl_keystore_location: Annotated[
        str, Setting("ssl.keystore.location", Kind.TEXT, per_listener=True)
    ] = ""
    """PEM file with the private key of this broker, its certificate and intermediate certificates.
    Required by listeners with TLS. Brokers present the same certificate to other brokers.
    """

    ssl_keystore_type: Annotated[
        str, Setting("ssl.keystore.type", Kind.ENUM, choices=("PEM",), per_listener=True)
    ] = "PEM"
    """Format of the keystore. Only PEM is supported."""

    ssl_key_password: Annotated[
        str, Setting("ssl.key.password", Kind.SECRET, per_listener=True)
    ] = ""
    """Password of the private key, if it is encrypted. Not available as a flag, because other
    processes can see flags: use the file or the environment variable.
    """

    ssl_truststore_location: Annotated[
        str, Setting("ssl.truststore.location", Kind.TEXT, per_listener=True)
    ] = ""
    """PEM file with the CA certificates that are trusted for clients and other brokers. Empty: for
    other brokers, the CA certificates of the operating system; for clients, none.
    """

    ssl_truststore_type: Annotated[
        str, Setting("ssl.truststore.type", Kind.ENUM, choices=("PEM",), per_listener=True)
    ] = "PEM"
    """Format of the truststore. Only PEM is supported."""

    ssl_client_auth: Annotated[
        str,
        Setting(
            "ssl.client.auth",
            Kind.ENUM,
            choices=(AUTH_NONE, AUTH_REQUESTED, AUTH_REQUIRED),
            per_listener=True,
        ),
    ] = AUTH_NONE
    """Whether clients of SSL listeners must present a certificate. requested: clients without a
    certificate are `User:ANONYMOUS`. As in Kafka (KIP-684), a SASL_SSL listener requests a
    certificate only if this setting is set for the listener; the principal is always the SASL user.
    """

    ssl_principal_mapping_rules: Annotated[
        str, Setting("ssl.principal.mapping.rules", Kind.TEXT, per_listener=True)
    ] = "DEFAULT"
    """How the subject of a certificate is mapped to a user name, as in Kafka:
    RULE:pattern/replacement/[LU] and DEFAULT (the whole subject), separated by commas. Patterns are
    RE2 regular expressions. Certificates that match no rule are rejected.
    """

    ssl_enabled_protocols: Annotated[
        tuple[str, ...], Setting("ssl.enabled.protocols", Kind.LIST, per_listener=True)
    ] = TLS_VERSIONS
    """TLS versions: TLSv1.2 and TLSv1.3."""

    ssl_endpoint_identification_algorithm: Annotated[
        str, Setting("ssl.endpoint.identification.algorithm", Kind.TEXT, per_listener=True)
    ] = HTTPS
    """https: the certificate of another broker must contain the host name or address that this
    broker connects to. Empty: any certificate signed by a trusted CA is accepted.
    """

    ssl_reload_interval_ms: Annotated[
        int, Setting("ssl.reload.interval.ms", Kind.DURATION, 100, 86_400_000)
    ] = 10_000
    """How often the broker checks whether the PEM files or the users file have changed. New
    connections use the new contents; if they are invalid, the previous contents stay in use.
    """

    sasl_enabled_mechanisms: Annotated[
        tuple[str, ...], Setting("sasl.enabled.mechanisms", Kind.LIST, per_listener=True)
    ] = tuple(SCRAM_BY_NAME)
    """SASL mechanisms that clients may use: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and OAUTHBEARER.
    PLAIN verifies passwords with the SCRAM credentials of the same users.
    """

    sasl_mechanism_inter_broker_protocol: Annotated[
        str,
        Setting("sasl.mechanism.inter.broker.protocol", Kind.ENUM, choices=(*SCRAM_BY_NAME, PLAIN)),
    ] = "SCRAM-SHA-512"
    """SASL mechanism for connections between brokers."""

    sasl_users_file: Annotated[str, Setting("sasl.users.file", Kind.TEXT)] = ""
    """File with one `name:password` per line, the same for all brokers: the brokers' own user, and
    users that must exist before any are created in the metadata. These users authenticate with
    PLAIN or SCRAM, and take precedence over users in the metadata.
    """

    sasl_inter_broker_username: Annotated[str, Setting("sasl.inter.broker.username", Kind.TEXT)] = (
        ""
    )
    """User for SASL connections between brokers. Its password is in `sasl_users_file`."""

    sasl_jwks_endpoint_url: Annotated[
        str, Setting("sasl.oauthbearer.jwks.endpoint.url", Kind.TEXT, per_listener=True)
    ] = ""
    """Location of the public keys for verifying tokens: https://, http:// or file:PATH of a JWKS
    document. Required by OAUTHBEARER. Redirects are not followed.
    """

    sasl_jwks_endpoint_refresh_ms: Annotated[
        int,
        Setting(
            "sasl.oauthbearer.jwks.endpoint.refresh.ms",
            Kind.DURATION,
            100,
            86_400_000,
            per_listener=True,
        ),
    ] = 3_600_000
    """How long keys are used before they are read again. A token with an unknown key id makes the
    broker read them immediately, but at most every 10 s.
    """

    sasl_oauth_expected_audience: Annotated[
        tuple[str, ...], Setting("sasl.oauthbearer.expected.audience", Kind.LIST, per_listener=True)
    ] = ()
    """A token must contain one of these audiences. Empty: tokens with an audience are rejected."""

    sasl_oauth_expected_issuer: Annotated[
        str, Setting("sasl.oauthbearer.expected.issuer", Kind.TEXT, per_listener=True)
    ] = ""
    """A token must contain this issuer. Empty: any issuer whose key is in the JWKS document."""

    sasl_oauth_required_scope: Annotated[
        tuple[str, ...], Setting("sasl.oauthbearer.required.scope", Kind.LIST, per_listener=True)
    ] = ()
    """A token must contain all of these scopes. Empty: no scope is required."""

    sasl_oauth_clock_skew_seconds: Annotated[
        int, Setting("sasl.oauthbearer.clock.skew.seconds", Kind.INT, 0, 3_600, per_listener=True)
    ] = 30
    """Tolerated difference between the clocks of the issuer and this broker."""

    sasl_oauth_scope_claim_name: Annotated[
        str, Setting("sasl.oauthbearer.scope.claim.name", Kind.TEXT, per_listener=True)
    ] = "scope"
    """Name of the claim that contains the scope. If present, the claim must be a string or a list
    of strings.
    """

    sasl_oauth_sub_claim_name: Annotated[
        str, Setting("sasl.oauthbearer.sub.claim.name", Kind.TEXT, per_listener=True)
    ] = "sub"
    """Name of the claim that contains the user name."""

    delegation_token_secret_key: Annotated[
        str, Setting("delegation.token.secret.key", Kind.SECRET)
    ] = ""
    """Key from which the secrets of delegation tokens (KIP-48) are derived, which must be the same
    for all brokers. Empty: delegation tokens are disabled. Changing the key invalidates all tokens.
    """

    delegation_token_max_lifetime_ms: Annotated[
        int, Setting("delegation.token.max.lifetime.ms", Kind.DURATION, 1, 10 * 365 * 86_400_000)
    ] = 7 * 86_400_000
    """Maximum lifetime of a delegation token, including renewals."""

    delegation_token_expiry_time_ms: Annotated[
        int, Setting("delegation.token.expiry.time.ms", Kind.DURATION, 1, 10 * 365 * 86_400_000)
    ] = 86_400_000
    """How long a delegation token is valid before it must be renewed."""

    connections_max_reauth_ms: Annotated[
        int,
        Setting("connections.max.reauth.ms", Kind.DURATION, 0, (1 << 31) - 1, per_listener=True),
    ] = 0
    """How long a SASL client may stay connected without reauthentication (KIP-368); 0 for no limit.
    After this time, the broker closes the connection.
    """

    sasl_receive_bytes_max: Annotated[
        int, Setting("sasl.server.max.receive.size", Kind.BYTES, 1_024, 1 << 30, per_listener=True)
    ] = 512 * 1024
    """Maximum request size of an unauthenticated client. A larger request closes the connection."""

    failed_authentication_delay_ms: Annotated[
        int, Setting("connection.failed.authentication.delay.ms", Kind.DURATION, 0, 60_000)
    ] = 100
    """Delay of the response to a failed authentication, which slows down password guessing."""

    authentication_timeout_ms: Annotated[
        int, Setting("connection.authentication.timeout.ms", Kind.DURATION, 100, 600_000)
    ] = 10_000
    """Maximum time for the TLS handshake and SASL together. The broker closes slower
    connections.
    """

    unauthenticated_connections_max: Annotated[
        int, Setting("max.unauthenticated.connections", Kind.INT, 1, 1_000_000)
    ] = 2_000
    """Maximum number of connections per listener that may be in a TLS handshake or SASL
    authentication at the same time. Above the limit, the broker closes the oldest such connection
    of the address with the most, so that a flood does not block other clients.
    """

    authorizer: Annotated[str, Setting("authorizer.class.name", Kind.TEXT)] = ""
    """The authorizer: StandardAuthorizer, which uses ACLs (also with Kafka's package name). Empty:
    every client may perform every operation. Must be the same for all brokers and controllers of a
    cluster.
    """

    super_users: Annotated[str, Setting("super.users", Kind.TEXT)] = ""
    """Principals that may perform every operation, as User:name, separated by semicolons. The
    principal of the brokers should be one of them.
    """

    allow_everyone_if_no_acl_found: Annotated[
        bool, Setting("allow.everyone.if.no.acl.found", Kind.BOOL)
    ] = False
    """Whether everyone may access a resource without ACLs."""

    listener_values: tuple[tuple[str, Any], ...] = ()
    """Settings of individual listeners with their values, as
    `listener.name.NAME.ssl.client.auth`.
    """

    def __post_init__(self) -> None:
        check(self)
        self._check_authorizer()
        _check_items("sasl_enabled_mechanisms", self.sasl_enabled_mechanisms, MECHANISMS)
        _check_items("ssl_enabled_protocols", self.ssl_enabled_protocols, TLS_VERSIONS)
        self._mapped()
        if self.ssl_endpoint_identification_algorithm not in {"", HTTPS}:
            raise SettingInvalid(
                "ssl_endpoint_identification_algorithm",
                self.ssl_endpoint_identification_algorithm,
                "https or empty",
            )
        try:
            self.principal_rules()
        except ValueError as error:
            raise SettingInvalid(
                "ssl_principal_mapping_rules", self.ssl_principal_mapping_rules, str(error)
            ) from None
        if self.sasl_jwks_endpoint_url:
            self._check_oauth()
        for listener in {key.listener for key in self._keys()}:
            try:
                self.of_listener(listener)
            except SettingInvalid as error:
                raise self._of(listener, error) from None

    def of_listener(self, listener: str) -> "SecurityConfig":
        """Return the settings that apply to one listener, which override the general settings."""
        own = own_values(self.listener_values, listener)
        values = {
            field.field: own[field.name] for field in fields_of(type(self)) if field.name in own
        }
        return replace(self, listener_values=(), **values)

    def listeners_with_tls(self) -> list[str]:
        """Return the names of the listeners with TLS settings of their own."""
        return sorted(
            {key.listener.upper() for key in self._keys() if key.setting.startswith(_TLS)}
        )

    def client_auth(self, listener: str) -> str:
        """Return whether clients of a TLS listener may or must present a certificate."""
        own = own_values(self.listener_values, listener)
        common = AUTH_NONE if self.protocol_of(listener).has_sasl else self.ssl_client_auth
        return str(own.get(_CLIENT_AUTH, common))

    def principal_rules(self) -> PrincipalRules:
        return PrincipalRules.parse(self.ssl_principal_mapping_rules)

    def protocol_of(self, listener: str) -> SecurityProtocol:
        """Return the protocol of a listener. Raises SettingInvalid if the listener is not in the
        map.
        """
        mapped = self._mapped()
        if listener in mapped:
            return mapped[listener]
        if listener in SecurityProtocol.__members__:
            return SecurityProtocol(listener)
        if mapped:
            raise SettingInvalid(
                "listener_security_protocol_map",
                self.listener_security_protocol_map,
                f"an entry for each listener; there is none for {listener}, as in {listener}:SSL",
            )
        return SecurityProtocol.PLAINTEXT

    def protocols(self, listeners: Iterable[str]) -> dict[str, SecurityProtocol]:
        """Return the protocols of these listeners, and check that the required settings are
        present. Raises SettingInvalid.
        """
        found = {name: self.protocol_of(name) for name in listeners}
        own = self.inter_broker_listener_name.upper()
        if own and own not in found:
            raise SettingInvalid(
                "inter_broker_listener_name", own, f"one of {', '.join(found)} (listeners)"
            )
        shown = self._shown_values()
        check_known(shown.items(), found)
        for key in self._keys():
            self._check_effect(key, shown[str(key)], found[key.listener.upper()])
        for name, protocol in found.items():
            try:
                self.of_listener(name)._check_protocol(protocol, self.client_auth(name))
            except SettingInvalid as error:
                raise self._of(name, error) from None
        self._check_peers(own or next(iter(found)))
        return found

    def _keys(self) -> list[ListenerKey]:
        """Return the names of the listener settings."""
        return [key for name, _ in self.listener_values if (key := split_key(name)) is not None]

    def _shown_values(self) -> dict[str, Any]:
        """Return the listener settings by name, with secrets hidden."""
        secrets = {
            field.name for field in fields_of(type(self)) if field.setting.kind is Kind.SECRET
        }
        return {
            name: HIDDEN if (key := split_key(name)) and key.setting in secrets else value
            for name, value in self.listener_values
        }

    @staticmethod
    def _check_effect(key: ListenerKey, value: object, protocol: SecurityProtocol) -> None:
        """Reject a listener setting that the listener's protocol does not use, because whoever set
        it would expect more security than the listener provides.
        """
        is_tls = key.setting.startswith(_TLS)
        if protocol.has_tls if is_tls else protocol.has_sasl:
            return
        raise SettingInvalid(
            str(key),
            value,
            f"the listener {key.listener.upper()} is {protocol}; give it"
            f" {'SSL' if is_tls else 'SASL_PLAINTEXT'} or SASL_SSL in"
            " listener_security_protocol_map, or remove the setting",
        )

    def _check_protocol(self, protocol: SecurityProtocol, client_auth: str) -> None:
        """Check that the settings required by a listener with this protocol are present."""
        if protocol.has_tls:
            self._check_tls(client_auth)
        if protocol.has_sasl and OAUTHBEARER in self.sasl_enabled_mechanisms:
            self._check_oauth()

    def _check_peers(self, listener: str) -> None:
        """Check that brokers can authenticate to each other on this listener."""
        if not self.protocol_of(listener).has_sasl:
            return
        if not (self.sasl_users_file and self.sasl_inter_broker_username):
            raise SettingInvalid(
                "sasl_inter_broker_username",
                self.sasl_inter_broker_username,
                f"a user of sasl_users_file, as which brokers connect to each other's listener"
                f" {listener} ({self.protocol_of(listener)}); or choose another listener by"
                " inter_broker_listener_name",
            )
        mechanisms = self.of_listener(listener).sasl_enabled_mechanisms
        if self.sasl_mechanism_inter_broker_protocol not in mechanisms:
            raise SettingInvalid(
                "sasl_mechanism_inter_broker_protocol",
                self.sasl_mechanism_inter_broker_protocol,
                f"a mechanism of the listener {listener}, by which brokers connect to each other"
                f" ({', '.join(mechanisms)}); or choose another listener by"
                " inter_broker_listener_name",
            )

    def _of(self, listener: str, error: SettingInvalid) -> SettingInvalid:
        """Return an error of `of_listener` with the setting name that applies to the listener."""
        name = {field.field: field.name for field in fields_of(type(self))}[error.name]
        key = ListenerKey(listener.lower(), name)
        if str(key) in dict(self.listener_values):
            return SettingInvalid(str(key), error.value, error.allowed)
        return SettingInvalid(
            error.name, error.value, f"{error.allowed} (listener {listener}; or set {key})"
        )

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer)

    def super_user_names(self) -> frozenset[str]:
        """Return the super users, as `User:name`. Raises ValueError."""
        return parse_principals(self.super_users)

    def _check_authorizer(self) -> None:
        if not is_authorizer(self.authorizer):
            raise SettingInvalid("authorizer", self.authorizer, f"{STANDARD_AUTHORIZER}, or empty")
        try:
            self.super_user_names()
        except ValueError as error:
            raise SettingInvalid(
                "super_users", self.super_users, "User:name, separated by semicolons"
            ) from error

    def _check_tls(self, client_auth: str) -> None:
        if not self.ssl_keystore_location:
            raise SettingInvalid("ssl_keystore_location", "", "a PEM file, which TLS needs")
        if client_auth != AUTH_NONE and not self.ssl_truststore_location:
            raise SettingInvalid(
                "ssl_truststore_location",
                "",
                f"a PEM file with CAs, because ssl_client_auth is {client_auth}",
            )

    def _check_oauth(self) -> None:
        for scope in self.sasl_oauth_required_scope:
            if not _SCOPE.fullmatch(scope):
                raise SettingInvalid(
                    "sasl_oauth_required_scope",
                    scope,
                    "scopes separated by commas, each without spaces, quotes and backslashes",
                )
        if not self.sasl_jwks_endpoint_url.startswith(_URLS):
            raise SettingInvalid(
                "sasl_jwks_endpoint_url",
                self.sasl_jwks_endpoint_url,
                "https://, http:// or file:PATH of a JWKS document, which OAUTHBEARER needs",
            )

    def _mapped(self) -> dict[str, SecurityProtocol]:
        mapped: dict[str, SecurityProtocol] = {}
        for item in self.listener_security_protocol_map:
            name, _, protocol = item.upper().partition(":")
            if not name or protocol not in SecurityProtocol.__members__ or name in mapped:
                raise SettingInvalid(
                    "listener_security_protocol_map",
                    item,
                    f"NAME:PROTOCOL, each name once, with {', '.join(SecurityProtocol)}",
                )
            mapped[name] = SecurityProtocol(protocol)
        return mapped


def _check_items(name: str, values: tuple[str, ...], choices: tuple[str, ...]) -> None:
    if not values or len(set(values)) < len(values) or not set(values) <= set(choices):
        raise SettingInvalid(name, values, f"each of {', '.join(choices)} at most once")
