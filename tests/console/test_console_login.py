"""Users log in with their names of the cluster, and see and do what the cluster lets them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from base.acls import Operation, PatternType, Permission, ResourceType
from base.scram import ScramMechanism
from deploy.clients.acls import AclSelection, add_acls
from deploy.clients.kafka import Kafka
from deploy.clients.security import ClientSecurity, read_file
from deploy.clients.users import create_user
from deploy.clients.wire import WireClient
from deploy.console.sessions import FAILURES_MAX
from deploy.local.handle import LocalCluster
from tests.support.console import Answer, Visitor

PASSWORD = "open-sesame"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Topics `words` and `secrets`; alice may describe and read the first, bob describes it."""
    arguments = ("--brokers", "1", "--secure", "--topics", "words:1,secrets:1")
    with LocalCluster((*arguments, "--log-level", "error")) as cluster:
        admin = admin_of(cluster)
        with WireClient(cluster.bootstrap, admin) as client:
            for user, operation in (("alice", Operation.READ), ("bob", Operation.DESCRIBE)):
                create_user(client, user, PASSWORD, ScramMechanism.SCRAM_SHA_256, 4_096)
                add_acls(client, [_allowed(user, operation)])
        producer = Kafka(cluster.bootstrap, admin).producer()
        producer.produce("words", b"hello")
        assert producer.flush(30) == 0
        yield cluster


def _allowed(user: str, operation: Operation) -> AclSelection:
    return AclSelection(
        ResourceType.TOPIC,
        "words",
        PatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        Permission.ALLOW,
    )


def admin_of(cluster: LocalCluster) -> ClientSecurity:
    return read_file(Path(cluster.state().command_config))


def login(cluster: LocalCluster, user: str, password: str) -> tuple[Visitor, Answer]:
    visitor = Visitor(cluster.state().console)
    fields = {"csrf": visitor.get("/login").csrf, "user": user, "password": password}
    return visitor, visitor.post("/login?next=%2Ftopics", fields)


def test_without_a_login_there_is_only_the_login(cluster: LocalCluster) -> None:
    visitor = Visitor(cluster.state().console)
    for path in ("/", "/topics/words/messages", "/doctor"):
        answer = visitor.get(path)
        assert answer.status == 303
        assert answer.headers["location"].startswith("/login?next=")
    assert visitor.get("/live/overview").status == 401
    assert visitor.post("/topics", {"name": "x"}).status == 401
    assert "words" not in visitor.get("/login").text


def test_the_super_user_sees_everything(cluster: LocalCluster) -> None:
    visitor, answer = login(cluster, "admin", admin_of(cluster).password)
    assert answer.headers["location"] == "/topics"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secrets" in visitor.get("/topics").words
    assert "hello" in visitor.get("/topics/words/messages").words
    assert "Write-ahead logs" in visitor.get("/nodes").words
    assert "User:alice" in visitor.get("/security").words


def test_a_user_sees_what_the_acls_allow(cluster: LocalCluster) -> None:
    visitor, answer = login(cluster, "alice", PASSWORD)
    assert answer.status == 303
    topics = visitor.get("/topics").words
    assert "words" in topics
    assert "secrets" not in topics
    assert "hello" in visitor.get("/topics/words/messages").words
    refused = (
        *("/topics/secrets", "/topics/secrets/messages", "/topics/secrets/0/move"),
        *("/", "/nodes", "/moves", "/objects/1", "/doctor", "/live/moves/secrets/0"),
    )
    for path in refused:
        answer = visitor.get(path)
        assert answer.status == 403, path
        assert "hello" not in answer.text
    assert "TOPIC_AUTHORIZATION_FAILED" not in topics
    assert "CLUSTER_AUTHORIZATION_FAILED" in visitor.get("/security").words


def test_describe_is_not_enough_for_records(cluster: LocalCluster) -> None:
    visitor, _ = login(cluster, "bob", PASSWORD)
    assert visitor.get("/topics/words").status == 200
    answer = visitor.get("/topics/words/messages")
    assert (answer.status, "need the operation read" in answer.words) == (403, True)


def test_a_session_ends_with_the_logout(cluster: LocalCluster) -> None:
    visitor, _ = login(cluster, "alice", PASSWORD)
    session = visitor.cookies["penstock_session"]
    assert visitor.post("/logout", {"csrf": visitor.get("/topics").csrf}).status == 303
    visitor.cookies["penstock_session"] = session
    assert visitor.get("/topics").status == 303


def test_guessing_is_slow(cluster: LocalCluster) -> None:
    """After ten failures within a minute, the right password does not help either."""
    statuses = [login(cluster, "alice", f"guess-{n}")[1].status for n in range(FAILURES_MAX)]
    assert statuses == [401] * FAILURES_MAX
    assert login(cluster, "alice", PASSWORD)[1].status == 429


def test_an_open_console_does_not_start_by_accident(cluster: LocalCluster) -> None:
    command = (sys.executable, "-P", "-m", "deploy.cli", "console", "--host", "0.0.0.0")
    done = subprocess.run(
        (*command, "--bootstrap", cluster.bootstrap), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "lets everyone in who reaches it: add --login" in done.stderr
