"""`penstock mirror` between clusters with authentication and ACLs."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.controller.metadata.topic_configs import MIRROR_SOURCE
from penstock.deploy.clients.security import parse
from penstock.deploy.mirror.admin import topic_configs
from penstock.deploy.mirror.batches import SourceBatch
from penstock.deploy.mirror.cluster import Cluster as Brokers
from penstock.deploy.mirror.cluster import ClusterAddress
from penstock.deploy.mirror.plan import OffsetKind
from penstock.deploy.mirror.same_offsets import SameOffsets
from penstock.deploy.mirror.source import Copy
from penstock.deploy.mirror.state import PartitionState
from penstock.protocol.batch.header import parse_header
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.client.errors import Refused
from penstock.protocol.error_codes import ErrorCode
from tests.support.cluster import Cluster
from tests.support.dev_cluster import penstock
from tests.support.mirrors import mirrored
from tests.support.secure_cluster import (
    BROKER_PASSWORD,
    BROKER_USER,
    SecureFiles,
    create_user,
    secure_cluster,
)

RIGHTS: dict[str, Any] = {"authorizer": STANDARD_AUTHORIZER, "super_users": f"User:{BROKER_USER}"}


def properties(files: SecureFiles) -> str:
    return (
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={BROKER_USER}\nsasl.password={BROKER_PASSWORD}\n"
        f"ssl.ca.location={files.truststore}\n"
    )


def configs_of(where: ClusterAddress, topic: str) -> dict[str, str]:
    with Brokers(where) as brokers:
        return topic_configs(brokers, [topic])[topic]


def append_as(where: ClusterAddress, mirror_source: str) -> Refused:
    """Append as a mirror does; return the error."""
    state = PartitionState(("orders", 0), OffsetKind.SAME, mirror_source, "", position=1)
    data = memoryview(encode_batch([Record(1, 1, b"k", b"v")], base_offset=1))
    with Brokers(where) as brokers, pytest.raises(Refused) as refused:
        SameOffsets(brokers).append([Copy(state, [SourceBatch(parse_header(data), data)], 2)])
    return refused.value


async def test_acls_are_copied_and_mirroring_requires_alter(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        clusters: list[Cluster] = []
        options: list[str] = []
        for name in ("source", "target"):
            files = SecureFiles(tmp_path / name / "security")
            cluster = secure_cluster(tmp_path / name, "SASL_SSL", security=RIGHTS, files=files)
            clusters.append(await stack.enter_async_context(cluster))
            config = tmp_path / f"{name}.properties"
            config.write_text(properties(files))
            options.append(str(config))
        source, target = clusters
        await create_user(target, "bob", "bob's secret")
        as_source = ("--bootstrap", source.bootstrap, "--command-config", options[0])
        write = ("--operation", "write")
        for arguments in (
            ("topics", "create", "orders", *as_source),
            (*("acls", "add", "--topic", "orders", "--principal", "User:bob"), *write, *as_source),
            ("produce", "orders", "--value", "x", *as_source),
        ):
            done = await asyncio.to_thread(penstock, None, *arguments)
            assert done.returncode == 0, done.stderr
        more = ("--from-config", options[0], "--command-config", options[1])
        done = await asyncio.to_thread(
            mirrored, source.bootstrap, target.bootstrap, "--once", *more
        )
        assert done.returncode == 0, done.stderr
        listed = await asyncio.to_thread(
            penstock,
            None,
            *("acls", "list", "--bootstrap", target.bootstrap, "--command-config", options[1]),
            "--json",
        )
        assert [acl["principal"] for acl in json.loads(listed.stdout)] == ["User:bob"]
        boss = parse((tmp_path / "target.properties").read_text())
        given = await asyncio.to_thread(
            configs_of, ClusterAddress(target.bootstrap, boss), "orders"
        )
        text = (tmp_path / "target.properties").read_text()
        bob = parse(text.replace(BROKER_USER, "bob", 1).replace(BROKER_PASSWORD, "bob's secret"))
        refused = await asyncio.to_thread(
            append_as, ClusterAddress(target.bootstrap, bob), given[MIRROR_SOURCE]
        )
        assert refused.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

        # With all rights except Alter, the mirror exits with the reason instead of retrying
        # forever.
        as_target = ("--bootstrap", target.bootstrap, "--command-config", options[1])
        config = tmp_path / "bob.properties"
        config.write_text(
            text.replace(BROKER_USER, "bob", 1).replace(BROKER_PASSWORD, "bob's secret")
        )
        who = ("--principal", "User:bob", *as_target)
        for arguments in (
            ("acls", "add", "--topic", "orders", "--operation", "describe-configs", *who),
            ("acls", "add", "--cluster", "--operation", "create", *who),
            ("produce", "orders", "--value", "y", *as_source),
        ):
            done = await asyncio.to_thread(penstock, None, *arguments)
            assert done.returncode == 0, done.stderr
        more = ("--once", "--no-acls", "--from-config", options[0], "--command-config", str(config))
        done = await asyncio.to_thread(mirrored, source.bootstrap, target.bootstrap, *more)
        assert done.returncode == 1
        assert "TOPIC_AUTHORIZATION_FAILED" in done.stderr
