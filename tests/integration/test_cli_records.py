"""`penstock produce` and `penstock consume` against real brokers round-trip records."""

import asyncio
import gc
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import UsageError
from tests.support.cli import Cli
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.terminal import on_a_terminal

SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
ALL = ("--from-beginning", "--until-end")
# After a failed command, the traceback keeps its librdkafka client alive, and the client may try to
# connect while this process stops the brokers.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
async def cli(tmp_path: Path) -> AsyncIterator[Cli]:
    async with Cluster(tmp_path) as cluster:
        for topic, partitions in (("orders", 2), ("copy", 2)):
            await asyncio.to_thread(create_topic, cluster.bootstrap, topic, partitions)
        yield Cli(cluster, tmp_path)
    gc.collect()


@pytest.fixture
def bootstrap(cli: Cli) -> str:
    return cli.bootstrap


@pytest.fixture
def registry() -> Iterator[str]:
    """Return the address of a schema registry that contains one schema."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = {
                "/schemas/ids/7": {"schema": SCHEMA},
                "/subjects/orders-value/versions/latest": {"id": 7, "schema": SCHEMA},
            }
            body = json.dumps(known.get(self.path, {})).encode()
            self.send_response(200 if self.path in known else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_produced_records_are_consumed_unchanged(cli: Cli) -> None:
    send = ("produce", "orders", "-p", "0", "--timestamp", "2026-01-01T00:00:00")
    await cli.run(*send, "--key-separator", ":", "-H", "from=cli", given=b"a:1\nb:2\n3\n")
    await cli.run("produce", "orders", "-p", "1", "--value", "x", "--count", "3", "--key", "k")
    first = json.loads(
        (await cli.run("consume", "orders", *ALL, "-p", "0", "--json")).split("\n")[0]
    )
    assert first == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp_ms": 1_767_225_600_000,
        "key": "a",
        "value": "1",
        "headers": [["from", "cli"]],
    }
    shown = await cli.run("consume", "orders", *ALL, "-p", "0", "-f", "%o:%k=%s;")
    assert shown == "0:a=1;1:b=2;2:=3;"
    assert await cli.run("consume", "orders", *ALL, "--key", "b") == "2\n"
    assert await cli.run("consume", "orders", "--offset", "-1", "--until-end", "-p", "0") == "3\n"
    assert await cli.run("consume", "orders", "--offset", "2", "--until-end", "-p", "0") == "3\n"
    late = ("--from-time", "2026-06-01", "--until-end", "--format", "hex")
    assert await cli.run("consume", "orders", *late) == "78\n" * 3
    everything = await cli.run("consume", "orders", *ALL, "--json")
    await cli.run("produce", "copy", "--json", given=everything.encode())
    copied = await cli.run("consume", "copy", *ALL, "--json")
    copied = copied.replace('"copy"', '"orders"')
    assert sorted(copied.splitlines()) == sorted(everything.splitlines())
    by_group = ("consume", "orders", "--group", "g", "--from-beginning", "--max-messages", "6")
    assert len((await cli.run(*by_group)).splitlines()) == 6
    for wrong in (("--offset", "x"), ("--group", "g", "-p", "0"), ("-p", "9"), ("-f", "%z")):
        with pytest.raises(UsageError):
            await cli.run("consume", "orders", *wrong)


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list"),
        ("topics", "list", "--json"),
        ("consume", "orders", *ALL),
        ("consume", "orders", *ALL, "--json"),
        ("completion", "bash"),
        ("consume", "--help"),
    ],
)
async def test_commands_end_quietly_if_nobody_reads_their_output(
    cli: Cli, bootstrap: str, command: tuple[str, ...]
) -> None:
    await cli.run("produce", "orders", "--value", "v" * 1_000, "--count", "500")
    reading, writing = os.pipe()
    os.close(reading)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock", *command),
        stdout=writing,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PENSTOCK_BOOTSTRAP": bootstrap},
    )
    os.close(writing)
    _, reported = await process.communicate()
    assert (process.returncode, reported) == (1, b"")


@pytest.mark.parametrize("begin", [(), ("--offset", "latest"), ("--group", "new")])
async def test_consume_prints_only_new_records_by_default(cli: Cli, begin: tuple[str, ...]) -> None:
    """The command waits long enough for the partition to count as stalled."""
    await cli.run("produce", "orders", "-p", "0", given=b"old\nolder\n")
    assert await cli.run("consume", "orders", *begin, "--timeout", "3") == ""


async def test_produce_prints_partition_and_offset_of_each_record(cli: Cli) -> None:
    send = ("produce", "orders", "-p", "1")
    assert await cli.run(*send, "-v", given=b"a\nb\n") == (
        "orders partition 1 offset 0\norders partition 1 offset 1\n"
    )
    (line,) = (await cli.run(*send, "--output", "json", "--value", "c")).splitlines()
    printed = json.loads(line)
    assert printed.pop("timestamp_ms") > 0
    assert printed == {"topic": "orders", "partition": 1, "offset": 2}
    read = ("consume", "orders", *ALL, "-p", "1")
    assert await cli.run(*read, "--output", "json") == await cli.run(*read, "--json")
    created = await cli.run("topics", "create", "new", "-p", "2", "-c", "retention.ms=9", "--json")
    assert json.loads(created) == {
        "name": "new",
        "partitions": 2,
        "config": {"retention.ms": "9"},
    }


REFUSED = (
    ({"cleanup.policy": "compact"}, (), "it has no key, and cleanup.policy=compact requires one"),
    (
        {"message.timestamp.before.max.ms": "1000"},
        ("--timestamp", "2020-01-01"),
        "its timestamp lies outside message.timestamp.before.max.ms (1000)",
    ),
    ({"max.message.bytes": "10"}, (), "its batch is larger than max.message.bytes (10)"),
    (
        {"penstock.value.schema": '{"type": "object"}'},
        (),
        "it does not match the value's schema in penstock.value.schema",
    ),
)


@pytest.mark.parametrize(("configs", "options", "reason"), REFUSED)
async def test_refused_record_is_reported_with_the_topic_config_that_refused_it(
    cli: Cli, configs: dict[str, str], options: tuple[str, ...], reason: str
) -> None:
    given = [item for pair in configs.items() for item in ("--config", "=".join(pair))]
    await cli.run("topics", "create", "strict", *given)
    with pytest.raises(ExpectedError) as refused:
        await cli.run("produce", "strict", "--value", "x", *options)
    assert f"topic 'strict' refused a record: {reason}" in str(refused.value)
    assert "`penstock configs describe --topic strict`" in str(refused.value)


async def test_reported_reason_belongs_to_the_record_that_was_refused(cli: Cli) -> None:
    """Valid records of the same batch fail too, without a reason of their own."""
    await cli.run("topics", "create", "strict", "--config", "cleanup.policy=compact")
    with pytest.raises(ExpectedError, match="it has no key, and"):
        await cli.run("produce", "strict", "--key-separator", ":", given=b"a:1\nb:2\nnone\nc:3\n")


async def test_consume_commits_only_records_that_it_printed(cli: Cli) -> None:
    await cli.run("produce", "orders", "-p", "0", given=b"1\n2\n3\n")
    read = ("consume", "orders", "--group", "g", "--from-beginning", "--max-messages", "1")
    for expected in ("1\n", "2\n", "3\n"):
        assert await cli.run(*read) == expected


async def test_produce_to_a_nonexistent_partition_is_refused(cli: Cli) -> None:
    for given in (("-p", "9", "--value", "x"), ("--json",)):
        with pytest.raises(UsageError, match="partition 9 of 'orders' does not exist: its part"):
            await cli.run("produce", "orders", *given, given=b'{"value": "x", "partition": 9}')
    with pytest.raises(UsageError, match="--topic TOPIC --set a=1"):
        await cli.run("topics", "alter", "orders", "--config", "a=1")


async def test_progress_is_shown_on_a_terminal(cli: Cli, bootstrap: str) -> None:
    shown = await asyncio.to_thread(
        on_a_terminal,
        bootstrap,
        *("produce", "orderz", "-v"),
        steps=(("Ctrl-D ends the input", b"one\n"), ("orderz partition 0 offset 0", b"\x04")),
    )
    assert "1 record acknowledged" in shown
    assert "topic 'orderz' did not exist and was created; did you mean orders?" in shown
    shown = await asyncio.to_thread(
        on_a_terminal,
        bootstrap,
        *("consume", "orders"),
        steps=(("ones; Ctrl-C ends\r\n", b"\x03"),),
    )
    assert "waiting for records of orders; --from-beginning prints older ones" in shown
    assert "\n\n0 records" in shown.replace("\r", ""), "the line has ^C"
    shown = await asyncio.to_thread(
        on_a_terminal,
        bootstrap,
        *("produce", "orders", "-v"),
        steps=(("Ctrl-D ends the input", b"one\n"), ("offset", b"\x03")),
    )
    assert "1 record acknowledged" in shown


async def test_progress_bar_does_not_write_to_stdout(
    cli: Cli, bootstrap: str, tmp_path: Path
) -> None:
    command = ("produce", "orders", "--value", "x", "--count", "8", "--rate", "4", "-o", "json")
    shown = await asyncio.to_thread(
        on_a_terminal, bootstrap, *command, steps=(), stdout=tmp_path / "positions.jsonl"
    )
    assert "8 records acknowledged" in shown
    assert len((tmp_path / "positions.jsonl").read_text().splitlines()) == 8


async def test_binary_keys_and_values_round_trip(cli: Cli) -> None:
    odd = os.fsdecode(b"\xff=\xe9")
    send = ("produce", "orders", "-p", "0")
    await cli.run(*send, "--value", odd, "--key", odd, "-H", f"h={odd}", "-H", "n", "-H", "t=x")
    await cli.run(*send, "--key-separator", os.fsdecode(b"\xfe"), given=b"k\xfe\xffv\n")
    for topic in ("orders", "copy"):
        printed = await cli.run("consume", topic, *ALL, "-p", "0", "--json")
        first, second = map(json.loads, printed.splitlines())
        assert first["key"] == first["value"] == r"\xff=\xe9"
        assert first["headers"] == [["h", r"\xff=\xe9"], ["n", None], ["t", "x"]]
        assert first["key_base64"] == first["value_base64"] == "/z3p"
        assert first["headers_base64"] == [["h", "/z3p"], ["n", None], ["t", "eA=="]]
        assert (second["key"], second["value_base64"]) == ("k", "/3Y=")
        assert not {"key_base64", "headers_base64"} & second.keys()
        assert await cli.run("consume", topic, *ALL, "--key", odd, "--format", "hex") == "ff3de9\n"
        if topic == "orders":
            await cli.run("produce", "copy", "--json", given=printed.encode())


async def test_produce_limits_its_rate(cli: Cli) -> None:
    rate, count = 20, 31
    await cli.run(
        *("produce", "orders", "-p", "0", "--value", "x"),
        *("--count", str(count), "--rate", str(rate)),
    )
    shown = await cli.run("consume", "orders", *ALL, "-p", "0", "-f", "%T\n")
    times_ms = [int(line) for line in shown.split()]
    assert len(times_ms) == count
    # No record may arrive earlier than the rate allows. The clock starts before the first record.
    late_ms = 500
    for index, time_ms in enumerate(times_ms):
        assert time_ms - times_ms[0] >= index * 1_000 / rate - late_ms, index


async def test_consume_limits_its_rate(cli: Cli) -> None:
    await cli.run("produce", "orders", "--value", "x", "--count", "11")
    began = time.monotonic()
    shown = await cli.run("consume", "orders", *ALL, "--rate", "10")
    assert shown == "x\n" * 11
    assert time.monotonic() - began >= 1
    with pytest.raises(UsageError, match="--rate and --snapshot"):
        await cli.run("consume", "orders", "--snapshot", "s", "--rate", "10")


async def test_produce_in_a_transaction_writes_all_records_or_none(cli: Cli) -> None:
    send = ("produce", "orders", "-p", "0", "--transactional-id", "t", "--format", "json")
    with pytest.raises(ExpectedError, match="line 2: it is not JSON"):
        await cli.run(*send, given=b"1\n{\n")
    assert await cli.run("consume", "orders", *ALL) == ""
    await cli.run(*send, given=b'{"a":1}\n2\n')
    assert await cli.run("consume", "orders", *ALL) == '{"a":1}\n2\n'
    with pytest.raises(UsageError, match="--transactional-id needs --acks all"):
        await cli.run(*send, "--acks", "1")


async def test_avro_round_trips_with_a_schema_file_and_with_a_registry(
    cli: Cli, registry: str
) -> None:
    by_file = ("--format", "avro", "--schema", cli.file("order.avsc", SCHEMA))
    await cli.run("produce", "copy", *by_file, given=b'{"id": 1}\n{"id": 2}\n')
    assert set((await cli.run("consume", "copy", *ALL, *by_file)).split()) == {
        '{"id":1}',
        '{"id":2}',
    }
    framed = ("--format", "avro", "--schema-registry", registry)
    await cli.run("produce", "orders", *framed, given=b'{"id": 3}\n')
    assert await cli.run("consume", "orders", *ALL, *framed) == '{"id":3}\n'
    assert await cli.run("consume", "orders", *ALL, "--format", "hex") == "000000000706\n"
    with pytest.raises(ExpectedError, match=r"offset 0 of copy-.* begin with a magic byte"):
        await cli.run("consume", "copy", *ALL, *framed)
    with pytest.raises(ExpectedError, match="returned 404 for GET /subjects/copy-value"):
        await cli.run("produce", "copy", *framed, given=b'{"id": 3}\n')
