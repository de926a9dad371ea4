"""Settings of brokers that say how clients authenticate and who decides what they may do.

Invariant: a `SecurityConfig` that exists is valid by itself. Whether it suits the listeners is
checked by `protocols`, and whether the files can be used by those who read them.
Must not: read files.
Source: Kafka's SslConfigs, SaslConfigs and BrokerSecurityConfigs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from base.listeners import SecurityProtocol
from base.principal import Principal
from base.scram import SCRAM_BY_NAME
from base.settings import Kind, Setting, SettingInvalid, check
from broker.security.principal_rules import PrincipalRules

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_PRINCIPAL_SEPARATOR: Final = ";"
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER)
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
AUTH_NONE: Final = "none"
AUTH_REQUESTED: Final = "requested"
AUTH_REQUIRED: Final = "required"
HTTPS: Final = "https"
_URLS: Final = ("http://", "https://", "file:")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """How clients and brokers authenticate, and who may do what. Times are in milliseconds."""

    listener_security_protocol_map: Annotated[
        tuple[str, ...], Setting("listener.security.protocol.map", Kind.LIST)
    ] = ()
    """NAME:PROTOCOL for each listener whose name is not a protocol itself. Protocols are PLAINTEXT,
    SSL, SASL_PLAINTEXT and SASL_SSL. Without a map, other names mean PLAINTEXT.
    """

    inter_broker_listener_name: Annotated[str, Setting("inter.broker.listener.name", Kind.TEXT)] = (
        ""
    )
    """The listener of other brokers to which a broker connects, and whose protocol it uses then.
    Empty: their first listener.
    """

    ssl_keystore_location: Annotated[str, Setting("ssl.keystore.location", Kind.TEXT)] = ""
    """PEM file with the private key of this broker, its certificate and the certificates between
    that and the CA. Listeners with TLS need it. Brokers show the same certificate to other brokers.
    """

    ssl_keystore_type: Annotated[str, Setting("ssl.keystore.type", Kind.ENUM, choices=("PEM",))] = (
        "PEM"
    )
    """Format of the keystore. There is only PEM."""

    ssl_key_password: Annotated[str, Setting("ssl.key.password", Kind.SECRET)] = ""
    """Password of the private key, if the file has it encrypted. Not as a flag, which other
    processes can see: use the file or the variable.
    """

    ssl_truststore_location: Annotated[str, Setting("ssl.truststore.location", Kind.TEXT)] = ""
    """PEM file with the certificates of the CAs that sign certificates of clients and of other
    brokers. Empty: those of the operating system for other brokers, and none for clients.
    """

    ssl_truststore_type: Annotated[
        str, Setting("ssl.truststore.type", Kind.ENUM, choices=("PEM",))
    ] = "PEM"
    """Format of the truststore. There is only PEM."""

    ssl_client_auth: Annotated[
        str,
        Setting("ssl.client.auth", Kind.ENUM, choices=(AUTH_NONE, AUTH_REQUESTED, AUTH_REQUIRED)),
    ] = AUTH_NONE
    """Whether clients of SSL listeners show a certificate. requested: those that show none are
    `User:ANONYMOUS`. SASL_SSL listeners do not ask for one, as in Kafka.
    """

    ssl_principal_mapping_rules: Annotated[
        str, Setting("ssl.principal.mapping.rules", Kind.TEXT)
    ] = "DEFAULT"
    """How the subject of a certificate becomes the name of a user, as in Kafka:
    RULE:pattern/replacement/[LU] and DEFAULT (the whole subject), separated by commas. Patterns are
    RE2's. A certificate that no rule matches is refused.
    """

    ssl_enabled_protocols: Annotated[
        tuple[str, ...], Setting("ssl.enabled.protocols", Kind.LIST)
    ] = TLS_VERSIONS
    """Versions of TLS: TLSv1.2 and TLSv1.3."""

    ssl_endpoint_identification_algorithm: Annotated[
        str, Setting("ssl.endpoint.identification.algorithm", Kind.TEXT)
    ] = HTTPS
    """https: the certificate of another broker must have the host name or address to which this
    broker connects. Empty: any certificate of the CA will do.
    """

    ssl_reload_interval_ms: Annotated[
        int, Setting("ssl.reload.interval.ms", Kind.DURATION, 100, 86_400_000)
    ] = 10_000
    """How often the broker looks whether the PEM files or the file of users have changed. New
    connections use the new contents; if these are broken, the old ones stay in use.
    """

    sasl_enabled_mechanisms: Annotated[
        tuple[str, ...], Setting("sasl.enabled.mechanisms", Kind.LIST)
    ] = tuple(SCRAM_BY_NAME)
    """SASL mechanisms that clients may use: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and OAUTHBEARER.
    PLAIN checks passwords against the SCRAM credentials of the same users.
    """

    sasl_mechanism_inter_broker_protocol: Annotated[
        str,
        Setting("sasl.mechanism.inter.broker.protocol", Kind.ENUM, choices=(*SCRAM_BY_NAME, PLAIN)),
    ] = "SCRAM-SHA-512"
    """SASL mechanism by which brokers authenticate to each other."""

    sasl_users_file: Annotated[str, Setting("sasl.users.file", Kind.TEXT)] = ""
    """File with one `name:password` in each line, the same for all brokers: users who exist before
    the metadata has any, and the one of the brokers. They authenticate by PLAIN and SCRAM, and
    take precedence over users in the metadata.
    """

    sasl_inter_broker_username: Annotated[str, Setting("sasl.inter.broker.username", Kind.TEXT)] = (
        ""
    )
    """User as which brokers authenticate to each other by SASL. Its password is in
    `sasl_users_file`.
    """

    sasl_jwks_endpoint_url: Annotated[
        str, Setting("sasl.oauthbearer.jwks.endpoint.url", Kind.TEXT)
    ] = ""
    """Where the public keys are that verify tokens: https://, http:// or file:PATH of a JWKS
    document. OAUTHBEARER needs it. Redirects are not followed.
    """

    sasl_jwks_endpoint_refresh_ms: Annotated[
        int, Setting("sasl.oauthbearer.jwks.endpoint.refresh.ms", Kind.DURATION, 100, 86_400_000)
    ] = 3_600_000
    """How long keys are used before they are read again. A token with an unknown key id makes the
    broker read them at once, at most every 10 s.
    """

    sasl_oauth_expected_audience: Annotated[
        tuple[str, ...], Setting("sasl.oauthbearer.expected.audience", Kind.LIST)
    ] = ()
    """A token must name one of these as its audience. Empty: tokens that name one are refused."""

    sasl_oauth_expected_issuer: Annotated[
        str, Setting("sasl.oauthbearer.expected.issuer", Kind.TEXT)
    ] = ""
    """A token must name this issuer. Empty: any issuer whose key is in the JWKS document."""

    sasl_oauth_clock_skew_seconds: Annotated[
        int, Setting("sasl.oauthbearer.clock.skew.seconds", Kind.INT, 0, 3_600)
    ] = 30
    """Difference between the clocks of the issuer and of this broker that is tolerated."""

    sasl_oauth_scope_claim_name: Annotated[
        str, Setting("sasl.oauthbearer.scope.claim.name", Kind.TEXT)
    ] = "scope"
    """The claim with the scope, which must be a text or a list of texts if a token has it."""

    sasl_oauth_sub_claim_name: Annotated[
        str, Setting("sasl.oauthbearer.sub.claim.name", Kind.TEXT)
    ] = "sub"
    """The claim with the name of the user."""

    connections_max_reauth_ms: Annotated[
        int, Setting("connections.max.reauth.ms", Kind.DURATION, 0, (1 << 31) - 1)
    ] = 0
    """How long a SASL client may stay connected without authenticating again (KIP-368); 0 for no
    limit. Connections of clients that do not are closed.
    """

    sasl_receive_bytes_max: Annotated[
        int, Setting("sasl.server.max.receive.size", Kind.BYTES, 1_024, 1 << 30)
    ] = 512 * 1024
    """Largest request of a client that has not authenticated. A larger one closes the
    connection.
    """

    failed_authentication_delay_ms: Annotated[
        int, Setting("connection.failed.authentication.delay.ms", Kind.DURATION, 0, 60_000)
    ] = 100
    """How long the answer to a failed authentication is delayed, which slows down guessing."""

    authentication_timeout_ms: Annotated[
        int, Setting("connection.authentication.timeout.ms", Kind.DURATION, 100, 600_000)
    ] = 10_000
    """How long a client may take for the TLS handshake and SASL together. The broker closes slower
    connections.
    """

    unauthenticated_connections_max: Annotated[
        int, Setting("max.unauthenticated.connections", Kind.INT, 1, 1_000_000)
    ] = 2_000
    """Connections that may be in TLS handshakes or SASL at the same time. The broker closes further
    ones immediately, so that strangers cannot use up `max.connections`.
    """

    authorizer: Annotated[str, Setting("authorizer.class.name", Kind.TEXT)] = ""
    """Who decides what clients may do: StandardAuthorizer, by ACLs (also with Kafka's package name
    before it). Empty: every client may do everything. The same for all brokers of a cluster.
    """

    super_users: Annotated[str, Setting("super.users", Kind.TEXT)] = ""
    """Principals that may do everything, as User:name, separated by semicolons. The brokers' own
    principal should be one of them.
    """

    allow_everyone_if_no_acl_found: Annotated[
        bool, Setting("allow.everyone.if.no.acl.found", Kind.BOOL)
    ] = False
    """Whether everyone may do everything with a resource that has no ACL."""

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
        self._check_oauth()

    def principal_rules(self) -> PrincipalRules:
        return PrincipalRules.parse(self.ssl_principal_mapping_rules)

    def protocol_of(self, listener: str) -> SecurityProtocol:
        """Return the protocol of a listener by its name. Raises SettingInvalid if the map lacks
        it.
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
        """Return the protocols of these listeners, after a check that the settings which they need
        are there. Raises SettingInvalid.
        """
        found = {name: self.protocol_of(name) for name in listeners}
        own = self.inter_broker_listener_name.upper()
        if own and own not in found:
            raise SettingInvalid(
                "inter_broker_listener_name", own, f"one of {', '.join(found)} (listeners)"
            )
        if any(protocol.has_tls for protocol in found.values()):
            self._check_tls()
        peers = found[own] if own else next(iter(found.values()))
        if peers.has_sasl and not (self.sasl_users_file and self.sasl_inter_broker_username):
            name = own or next(iter(found))
            raise SettingInvalid(
                "sasl_inter_broker_username",
                self.sasl_inter_broker_username,
                f"a user of sasl_users_file, as which brokers connect to each other's listener"
                f" {name} ({peers}); or choose another listener by inter_broker_listener_name",
            )
        return found

    @property
    def has_authorizer(self) -> bool:
        return bool(self.authorizer)

    def super_user_names(self) -> frozenset[str]:
        """Return the super users as `User:name`. Raises ValueError."""
        texts = (text.strip() for text in self.super_users.split(_PRINCIPAL_SEPARATOR))
        return frozenset(str(Principal.parse(text)) for text in texts if text)

    def _check_authorizer(self) -> None:
        if self.authorizer.removeprefix("org.apache.kafka.metadata.authorizer.") not in {
            "",
            "StandardAuthorizer",
        }:
            raise SettingInvalid("authorizer", self.authorizer, f"{STANDARD_AUTHORIZER}, or empty")
        try:
            self.super_user_names()
        except ValueError as error:
            raise SettingInvalid(
                "super_users", self.super_users, "User:name, separated by semicolons"
            ) from error

    def _check_tls(self) -> None:
        if not self.ssl_keystore_location:
            raise SettingInvalid(
                "ssl_keystore_location", "", "a PEM file, for the listeners with TLS"
            )
        if self.ssl_client_auth != AUTH_NONE and not self.ssl_truststore_location:
            raise SettingInvalid(
                "ssl_truststore_location",
                "",
                f"a PEM file with CAs, because ssl_client_auth is {self.ssl_client_auth}",
            )

    def _check_oauth(self) -> None:
        if OAUTHBEARER not in self.sasl_enabled_mechanisms:
            return
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
