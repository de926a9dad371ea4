"""Sign OAUTHBEARER tokens, issue them to clients, and serve the keys that verify them."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from jwt.algorithms import RSAAlgorithm

from tests.support.stream_server import StreamServer


class TokenIssuer:
    """Signs tokens and serves its keys over HTTP.

    POST issues a token to a client that logs in with `LOGIN`, or that sends an assertion signed
    with `client_key`.
    """

    LOGIN = "client:its secret"
    AUDIENCE = "https://id.example"

    def __init__(self) -> None:
        self.keys = {"one": rsa.generate_private_key(public_exponent=65_537, key_size=2_048)}
        self.request_count = 0
        self.forms: list[str] = []
        """Token requests of clients."""
        self.client_key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        self.assertions: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """The headers and claims of accepted assertions."""
        self.port = 0
        self._server = StreamServer(self._respond)

    async def __aenter__(self) -> Self:
        self.port = self._server.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def document(self) -> bytes:
        return json.dumps(
            {
                "keys": [
                    {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": key_id}
                    for key_id, key in self.keys.items()
                ]
            }
        ).encode()

    def token(self, key_id: str = "one", algorithm: str = "RS256", **changes: Any) -> str:
        now = int(time.time())
        claims = {"sub": "carol", "aud": "kafka", "iss": "us", "iat": now, "exp": now + 60}
        key = self.keys.get(key_id) or rsa.generate_private_key(
            public_exponent=65_537, key_size=2_048
        )
        signer: Any = None if algorithm == "none" else key
        return jwt.encode(claims | changes, signer, algorithm, headers={"kid": key_id})

    def write_assertion_files(
        self, directory: Path, *, key: RSAPrivateKey | None = None, passphrase: str = ""
    ) -> str:
        """Write the key of the client, or another key, and an assertion template. Return the
        properties of a client that uses both.
        """
        pem = (key or self.client_key).private_bytes(
            Encoding.PEM,
            PrivateFormat.PKCS8,
            BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption(),
        )
        (directory / "key.pem").write_bytes(pem)
        template = {"header": {"kid": "client-1"}, "payload": {"iss": "template", "team": 7}}
        (directory / "template.json").write_text(json.dumps(template))
        return (
            f"sasl.oauthbearer.token.endpoint.url=http://127.0.0.1:{self.port}/token\n"
            "sasl.oauthbearer.jwt.retriever.class="
            "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever\n"
            f"sasl.oauthbearer.assertion.private.key.file={directory / 'key.pem'}\n"
            f"sasl.oauthbearer.assertion.template.file={directory / 'template.json'}\n"
            f"sasl.oauthbearer.assertion.claim.aud={self.AUDIENCE}\n"
            "sasl.oauthbearer.assertion.claim.iss=claim\n"
            "sasl.oauthbearer.assertion.claim.sub=client-1\n"
            "sasl.oauthbearer.assertion.claim.jti.include=true\n"
            "sasl.oauthbearer.assertion.claim.exp.seconds=120\n"
            "sasl.oauthbearer.scope=all of it\n"
        ) + (
            f"sasl.oauthbearer.assertion.private.key.passphrase={passphrase}\n"
            if passphrase
            else ""
        )

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.request_count += 1
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, body = "200 OK", self.document()
        if head.startswith("POST "):
            fields = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head.splitlines()[1:])
            }
            form = await reader.readexactly(int(fields["content-length"]))
            login = base64.b64encode(self.LOGIN.encode()).decode()
            if fields.get("authorization") == f"Basic {login}" or self._accepts(form.decode()):
                self.forms.append(form.decode())
                body = json.dumps({"access_token": self.token(), "expires_in": 60}).encode()
            else:
                status = "401 Unauthorized"
        response = (
            f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(f"{response}\r\n\r\n".encode() + body)

    def _accepts(self, form: str) -> bool:
        sent = dict(parse_qsl(form))
        if sent.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return False
        try:
            found = jwt.decode_complete(
                sent["assertion"],
                self.client_key.public_key(),
                algorithms=["RS256"],
                audience=self.AUDIENCE,
                options={"require": ["exp", "iat", "nbf", "sub"]},
            )
        except jwt.PyJWTError:
            return False
        self.assertions.append((found["header"], found["payload"]))
        return True
