"""Attack a broker, and measure its memory and the latency of another client.

The controller, the broker, the attacker and the producer are separate processes. The broker has
`queued.max.request.bytes` of 512 MiB. Each attack in `benchmarks.attackers` lasts _ATTACK_S.
"""

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from benchmarks import attackers, clients, harness
from benchmarks.harness import Measure
from penstock.controller.metadata.topic_configs import VALUE_SCHEMA
from penstock.deploy.local.certificates import Authority
from penstock.deploy.node.lifeline import PARENT_VARIABLE
from penstock.deploy.private_files import write_private

_ATTACK_S: Final = 5
_RATE_BYTES_PER_S: Final = 1e6
_QUEUED_BYTES_MAX: Final = 512 << 20
_CHOSEN: Final = os.environ.get("BENCH_ATTACKS", "").split(",")
"""Name fragments: only matching attacks are measured, or all attacks if there are none."""


@dataclass(frozen=True, slots=True)
class _System:
    """A broker and the ports of its listeners."""

    broker: "subprocess.Popen[bytes]"
    port: int
    sasl_port: int
    tls_port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


def attacks() -> list[Measure]:
    """Run each attack on one broker, and compare with the latency before the attacks."""
    with _system() as system:
        _create_topics(system.bootstrap)
        clients.produce_for(system.bootstrap, 1)
        usual_ms = harness.quantile(
            clients.produce_latencies_ms(system.bootstrap, _RATE_BYTES_PER_S, 2 * _ATTACK_S), 0.99
        )
        measures: list[Measure] = []
        for name, attack, port in _attacks_on(system):
            process = multiprocessing.get_context("spawn").Process(
                target=attack, args=(port,), daemon=True
            )
            process.start()
            found_ms = clients.produce_latencies_ms(system.bootstrap, _RATE_BYTES_PER_S, _ATTACK_S)
            process.kill()
            process.join()
            measures.append(
                Measure(
                    f"p99 of produce during {name} / usual",
                    harness.quantile(found_ms, 0.99),
                    "ms",
                    5,
                    "lower",
                    usual_ms,
                )
            )
            measures.append(
                Measure(
                    f"memory up to the end of {name}",
                    _rss_mb(system.broker),
                    "MB",
                    1_074,
                    "lower",
                )
            )
    return measures


def _attacks_on(system: _System) -> Iterator[tuple[str, attackers.Attack, int]]:
    """Yield name, attack and attacked port."""
    for port, attacks_there in (
        (system.port, attackers.OF_CLIENTS),
        (system.sasl_port, attackers.OF_STRANGERS),
        (system.tls_port, attackers.OF_TLS),
    ):
        for name, attack in attacks_there.items():
            if any(part in name for part in _CHOSEN):
                yield name, attack, port


def _create_topics(bootstrap: str) -> None:
    clients.create_topic(bootstrap)
    clients.create_topic(bootstrap, name=attackers.COMPACTED, config={"cleanup.policy": "compact"})
    clients.create_topic(bootstrap, attackers.WIDE_COUNT, name=attackers.WIDE)
    clients.produce_for(bootstrap, 0.5, topic=attackers.WIDE, partitions=attackers.WIDE_COUNT)
    for name, (kind, schema, _) in attackers.HOSTILE_SCHEMAS.items():
        config = {VALUE_SCHEMA.schema: schema, VALUE_SCHEMA.type: kind}
        clients.create_topic(bootstrap, name=name, config=config)


def _rss_mb(process: "subprocess.Popen[bytes]") -> float:
    """Return the peak resident memory of the process."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1_024 / 1e6


@contextmanager
def _system() -> Iterator[_System]:
    """Run a controller and a broker."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        controller, plain, sasl, tls = (harness.free_port() for _ in range(4))
        shared = {
            PARENT_VARIABLE: str(os.getpid()),
            "PENSTOCK_STORE": f"file:{directory}/store",
            "PENSTOCK_LOG_LEVEL": "error",
        }
        settings = {
            "controller": {
                "PENSTOCK_METADATA_LOG_DIR": f"{directory}/controller",
                "PENSTOCK_LISTENERS": f"CONTROLLER://127.0.0.1:{controller}",
            },
            "broker": {
                "PENSTOCK_NODE_ID": "0",
                "PENSTOCK_LISTENERS": (
                    f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},"
                    f"SSL://127.0.0.1:{tls}"
                ),
                "PENSTOCK_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": f"127.0.0.1:{controller}",
                "PENSTOCK_QUEUED_MAX_REQUEST_BYTES": str(_QUEUED_BYTES_MAX),
                **_security(Path(directory)),
            },
        }
        processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "penstock.deploy.cli", role],
                env={**os.environ, **shared, **variables},
                stderr=subprocess.DEVNULL,
            )
            for role, variables in settings.items()
        ]
        try:
            _wait_for_port(plain)
            yield _System(processes[1], plain, sasl, tls)
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


def _security(directory: Path) -> dict[str, str]:
    """Create a certificate, users and token issuer keys; return the environment variables."""
    write_private(directory / "users", f"{attackers.USER}:bench secret\n".encode())
    issued = Authority.make("bench CA").issue("broker", hosts=["127.0.0.1"])
    write_private(directory / "broker.pem", issued.keystore)
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = json.dumps({"keys": [{**public, "kid": attackers.KEY_ID}]})
    (directory / "keys.json").write_text(keys)
    return {
        "PENSTOCK_SSL_KEYSTORE_LOCATION": f"{directory}/broker.pem",
        "PENSTOCK_SASL_USERS_FILE": f"{directory}/users",
        "PENSTOCK_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-256,OAUTHBEARER",
        "PENSTOCK_SASL_OAUTHBEARER_JWKS_ENDPOINT_URL": f"file:{directory}/keys.json",
        "PENSTOCK_SASL_OAUTHBEARER_EXPECTED_AUDIENCE": "kafka",
    }


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise RuntimeError("the broker did not start within 30 s; run it by hand to see why")
