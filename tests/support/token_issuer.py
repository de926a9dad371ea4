"""Sign tokens for OAUTHBEARER, give them to clients, and serve the keys that verify them."""

import asyncio
import base64
import json
import time
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.stream_server import StreamServer


class TokenIssuer:
    """Signs tokens, and serves its keys over HTTP. POST gives a token to the client that logs in
    with `LOGIN`.
    """

    LOGIN = "client:its secret"

    def __init__(self) -> None:
        self.keys = {"one": rsa.generate_private_key(public_exponent=65_537, key_size=2_048)}
        self.request_count = 0
        self.forms: list[str] = []
        """What clients who got a token have sent."""
        self.port = 0
        self._server = StreamServer(self._answer)

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

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
            if fields.get("authorization") == f"Basic {login}":
                self.forms.append(form.decode())
                body = json.dumps({"access_token": self.token(), "expires_in": 60}).encode()
            else:
                status = "401 Unauthorized"
        answer = (
            f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(f"{answer}\r\n\r\n".encode() + body)
