"""Attacks on terminals: names, records and errors with control sequences for the reader's terminal,
or that imitate other lines. Machine-readable output preserves them in the escapes of its format.
"""

import asyncio
import csv
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.deploy.output import Format, print_document, print_table
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.terminal import HOSTILE, check_harmless, on_terminal
from tests.support.waiting import PATIENCE_S

TEXTS = ["plain", "a: b", "2026-01-01", "grün 😀", "tab\tand\nlines", "\\x1b \\", " ", "", HOSTILE]
GROUP = HOSTILE
VALUE = HOSTILE.encode() + b"\nsecond\tline \xff"
"""Not valid UTF-8."""


def test_table_cells_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HOSTILE, ["name", "count"], [[HOSTILE, 1]])
    text = capsys.readouterr().out
    check_harmless(text)
    assert text.count("[red]") == 2, "names are no markup"


@pytest.mark.parametrize("form", [Format.JSON, Format.YAML])
def test_json_and_yaml_output_is_escaped_without_loss(
    form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"names": TEXTS, HOSTILE: {"name": HOSTILE, "count": 1}}
    print_document(form, value)
    document = capsys.readouterr().out
    check_harmless(document)
    decode: Any = msgspec.json.decode if form is Format.JSON else msgspec.yaml.decode
    assert decode(document) == value


def test_csv_cells_are_written_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    print_document(Format.CSV, [{"name": text, "count": 1} for text in TEXTS])
    lines = csv.DictReader(io.StringIO(capsys.readouterr().out, newline=""))
    assert [line["name"] for line in lines] == TEXTS


def test_csv_sentences_and_errors_are_escaped_on_a_terminal() -> None:
    code = (
        "from penstock.deploy.errors import ExpectedError, print_error\n"
        "from penstock.deploy.output import Format, print_document, remark, say\n"
        f"name = {HOSTILE!r}\n"
        "print_document(Format.CSV, [{name: name}])\n"
        "say(f'deleted {name}')\n"
        "remark(f'warning: {name}')\n"
        "print_error(ExpectedError(f'topic {name}'))\n"
    )
    text = on_terminal([sys.executable, "-c", code]).decode()
    check_harmless(text)
    lines = text.splitlines()
    assert len(lines) == 6, lines
    assert lines[-1].startswith("  level=info"), "the second line of an error is indented"


def penstock(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "penstock.deploy.cli", *arguments]


def prepare(bootstrap: str) -> None:
    """Produce a hostile record, and commit an offset for a group with a hostile name."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", VALUE, HOSTILE.encode(), headers=[(HOSTILE, VALUE)])
    assert not producer.flush(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()


async def test_commands_print_hostile_names_and_records_escaped(tmp_path: Path) -> None:
    """The records and group names come from other clients."""
    async with Cluster(tmp_path) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "orders", 1)
        await asyncio.to_thread(prepare, cluster.bootstrap)
        variables = {"PENSTOCK_BOOTSTRAP": cluster.bootstrap, "XDG_CONFIG_HOME": str(tmp_path)}

        async def shown(*arguments: str) -> bytes:
            return await asyncio.to_thread(on_terminal, penstock(*arguments), variables)

        consume = ("consume", "orders", "--from-beginning", "--until-end")
        for options in ((), ("--template", "%k %h %s\\n"), ("--json",)):
            text = (await shown(*consume, *options)).decode()
            check_harmless(text)
            assert "x1b]0;title" in text or "u001b]0;title" in text
        assert VALUE in await shown(*consume, "--raw")
        for form in ("table", "csv"):
            check_harmless((await shown("groups", "list", "-o", form)).decode())
        text = (await shown("groups", "delete", GROUP, "--dry-run")).decode()
        check_harmless(text)
        assert text.startswith("would delete a\\x1b")

        def piped(*options: str) -> bytes:
            done = subprocess.run(
                penstock(*consume, *options),
                env={**os.environ, **variables},
                capture_output=True,
                check=True,
            )
            return done.stdout

        assert await asyncio.to_thread(piped) == VALUE + b"\n"
        assert await asyncio.to_thread(piped, "--template", "%s|%k") == b"%b|%b" % (
            VALUE,
            HOSTILE.encode(),
        )
