"""The properties that `penstock snippets java` prints, run with the command in their comment."""

import asyncio
import re
import shlex
from pathlib import Path

from penstock.deploy.local.client_snippets import SNIPPETS, filled
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.java_tools import ToolRunner

PRODUCER = "org.apache.kafka.tools.ConsoleProducer"


async def test_java_snippet_has_no_deprecated_options(tools: ToolRunner, tmp_path: Path) -> None:
    async with Cluster(tmp_path / "cluster") as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
        address = cluster.bootstrap
        text = filled(SNIPPETS["java"].program, bootstrap=address, topic="t", store="memory")
        (command,) = re.findall(r"^# kafka-console-producer\.sh (.*)", text, re.MULTILINE)
        option, file = shlex.split(command)
        (tmp_path / file).write_text(text)
        arguments = (option, str(tmp_path / file), "--bootstrap-server", address, "--topic", "t")
        done = await asyncio.to_thread(tools.run, PRODUCER, arguments, stdin="hello\n")
        assert (done.exit_code, "deprecated" in done.output) == (0, False), done.output
