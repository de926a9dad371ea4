"""Random nonces for SCRAM."""

import secrets
from typing import Final

_NONCE_BYTES: Final = 24


def new_nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)
