"""Serve a console over HTTP until SIGINT or SIGTERM.

Limits: `CONNECTIONS_MAX` connections, and `HEAD_BYTES_MAX` bytes per request head; idle connections
are closed after `IDLE_S`.
"""

import errno
import secrets
import socket
import time
from functools import partial
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from penstock.base.clock import wall_ms
from penstock.base.errors import ExpectedError
from penstock.base.listeners import is_loopback
from penstock.deploy.console.application import application
from penstock.deploy.console.connection import ConsoleConnection
from penstock.deploy.console.console import Console
from penstock.deploy.console.decoding import SchemaCache
from penstock.deploy.console.inherited_connections import HandedServer, yield_to_node
from penstock.deploy.console.live import LiveCluster
from penstock.deploy.console.options import ConsoleOptions
from penstock.deploy.console.sessions import Sessions
from penstock.deploy.errors import PortTaken, UsageError
from penstock.deploy.output import remark, say

CONNECTIONS_MAX: Final = 256
HEAD_BYTES_MAX: Final = 32 << 10
IDLE_S: Final = 30
STOP_S: Final = 1
_BACKLOG: Final = 128
_TOKEN_BYTES: Final = 32


def serve(options: ConsoleOptions) -> None:
    """Serve the console. Prints one line with its address. Raises PortTaken, ExpectedError."""
    new_token = partial(secrets.token_urlsafe, _TOKEN_BYTES)
    schemas = SchemaCache(options.schema_registry)
    console = Console(
        options,
        LiveCluster(options, wall_ms),
        Sessions(time.monotonic, new_token),
        schemas,
        new_token(),
    )
    config = config_of(application(console), options.certificate, options.key)
    if options.is_behind_node:
        assert options.file_descriptor is not None
        yield_to_node()
        HandedServer(config, socket.socket(fileno=options.file_descriptor)).run()
        return
    listening = _listening(options)
    if options.file_descriptor is None:
        _announce(options, listening)
    uvicorn.Server(config).run(sockets=[listening])


def config_of(app: ASGIApp, certificate: str = "", key: str = "") -> uvicorn.Config:
    """Return the limits for serving an application. An empty certificate means no TLS."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
        http=ConsoleConnection,
        ws="none",
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
        proxy_headers=False,
    )


def _listening(options: ConsoleOptions) -> socket.socket:
    if options.file_descriptor is not None:
        try:
            return socket.socket(fileno=options.file_descriptor)
        except (OSError, OverflowError, ValueError) as error:
            raise UsageError(
                f"--fd {options.file_descriptor} is not an open socket ({error}): pass the number"
                " of a listening socket that this process inherits, or use --host and --port"
            ) from None
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((options.host.strip("[]"), options.port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(options.host, options.port, "--port") from None
        raise ExpectedError(
            f"cannot listen on {options.host}:{options.port}: {error.strerror or error}"
        ) from None
    return listening


def _announce(options: ConsoleOptions, listening: socket.socket) -> None:
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if options.has_tls else "http"
    say(f"console={scheme}://{shown}:{port}")
    if options.has_tls or is_loopback(options.host):
        return
    if options.login:
        remark(
            "penstock: passwords are sent unencrypted; use --ssl-certificate and --ssl-key "
            "unless something in front of the console encrypts"
        )
    else:
        remark("penstock: everyone who reaches this address sees the cluster")
