"""Users log in with their Kafka credentials, and see and change only what their ACLs allow."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from penstock.deploy.console.sessions import FAILURES_MAX, UNKNOWN_S
from penstock.deploy.local.handle import LocalCluster
from tests.console.conftest import PASSWORD, admin_of, login
from tests.console.test_console_pages import problems_in_both_schemes
from tests.support.browser import DESK, resize
from tests.support.console import Visitor
from tests.support.waiting import PATIENCE_S, wait_until


def test_without_a_session_only_the_login_page_is_served(secure_cluster: LocalCluster) -> None:
    visitor = Visitor(secure_cluster.state().console)
    for path in ("/", "/topics/words/messages", "/doctor"):
        response = visitor.get(path)
        assert response.status == 303
        assert response.headers["location"].startswith("/login?next=")
    assert visitor.get("/live/overview").status == 401
    assert visitor.post("/topics", {"name": "x"}).status == 401
    assert "words" not in visitor.get("/login").text


def test_login_page_is_accessible(chrome: Chrome, secure_cluster: LocalCluster, axe: Path) -> None:
    resize(chrome, DESK)
    chrome.get(f"{secure_cluster.state().console}/login")
    form = chrome.find_element(By.TAG_NAME, "form").rect
    assert abs(form["x"] + form["width"] / 2 - DESK[0] / 2) < 2, "it is not in the middle"
    assert problems_in_both_schemes(chrome, axe) == []


def test_super_user_sees_everything(secure_cluster: LocalCluster) -> None:
    visitor, response = login(
        secure_cluster.state().console, "admin", admin_of(secure_cluster).password
    )
    assert response.headers["location"] == "/topics"
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secrets" in visitor.get("/topics").words
    assert "hello" in visitor.get("/topics/words/messages").words
    assert "Write-ahead logs" in visitor.get("/nodes").words
    assert "User:alice" in visitor.get("/security").words


def test_user_sees_only_resources_that_the_acls_allow(secure_cluster: LocalCluster) -> None:
    visitor, response = login(secure_cluster.state().console, "alice", PASSWORD)
    assert response.status == 303
    topics = visitor.get("/topics").words
    assert "words" in topics
    assert "secrets" not in topics
    assert "hello" in visitor.get("/topics/words/messages").words
    refused = (
        *("/topics/secrets", "/topics/secrets/messages", "/topics/secrets/0/move"),
        *("/", "/nodes", "/moves", "/objects/1", "/doctor", "/live/moves/secrets/0"),
    )
    for path in refused:
        response = visitor.get(path)
        assert response.status == 403, path
        assert "hello" not in response.text
    assert "TOPIC_AUTHORIZATION_FAILED" not in topics
    assert "CLUSTER_AUTHORIZATION_FAILED" in visitor.get("/security").words


def test_describe_right_does_not_show_records(secure_cluster: LocalCluster) -> None:
    visitor, _ = login(secure_cluster.state().console, "bob", PASSWORD)
    assert visitor.get("/topics/words").status == 200
    response = visitor.get("/topics/words/messages")
    assert (response.status, "require READ on the topic" in response.words) == (403, True)


def test_logout_ends_the_session(secure_cluster: LocalCluster) -> None:
    visitor, _ = login(secure_cluster.state().console, "alice", PASSWORD)
    session = visitor.cookies["penstock_session"]
    assert visitor.post("/logout", {"csrf": visitor.get("/topics").csrf}).status == 303
    visitor.cookies["penstock_session"] = session
    assert visitor.get("/topics").status == 303


def test_last_page_is_kept_while_rights_cannot_be_loaded(
    secure_cluster: LocalCluster,
) -> None:
    url = secure_cluster.state().console
    visitor, _ = login(url, "alice", PASSWORD)
    assert "words" in visitor.get("/topics").words
    brokers = secure_cluster.brokers()
    secure_cluster.kill(brokers, signal.SIGSTOP)
    try:
        wait_until(lambda: "This page is" in visitor.get("/topics").words, UNKNOWN_S + PATIENCE_S)
        response = visitor.get("/topics")
        assert (response.status, "words" in response.words) == (200, True)
        response = visitor.get("/topics/words")
        assert (response.status, "retries automatically" in response.words) == (502, True)
        stranger = Visitor(url)
        stranger.cookies["penstock_session"] = "unknown"
        assert stranger.first("/topics").status == 303
        assert visitor.get("/live/health").status == 200
        fields = {"csrf": stranger.get("/login").csrf, "user": "alice", "password": "right?"}
        assert stranger.post("/login", fields).status == 502
    finally:
        secure_cluster.kill(brokers, signal.SIGCONT)
    wait_until(lambda: "This page is" not in visitor.get("/topics").words)
    assert "words" in visitor.get("/topics/words").words


def test_password_guessing_is_rate_limited(secure_cluster: LocalCluster) -> None:
    """After ten failures within a minute, even the right password is refused. The guesses are sent
    at once, because a slow machine may need several seconds for each.
    """
    url = secure_cluster.state().console
    with ThreadPoolExecutor(FAILURES_MAX) as threads:
        guesses = [threads.submit(login, url, "alice", f"guess-{n}") for n in range(FAILURES_MAX)]
        statuses = [guess.result(PATIENCE_S)[1].status for guess in guesses]
    assert statuses == [401] * FAILURES_MAX
    assert login(url, "alice", PASSWORD)[1].status == 429


def test_unauthenticated_console_requires_explicit_permission(secure_cluster: LocalCluster) -> None:
    command = (sys.executable, "-P", "-m", "penstock.deploy.cli", "console", "--host", "0.0.0.0")
    done = subprocess.run(
        (*command, "--bootstrap", secure_cluster.bootstrap),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "allows unauthenticated access: add --login" in done.stderr
