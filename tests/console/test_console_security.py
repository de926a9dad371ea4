"""ACLs, users and quotas are changed in a browser, within the rights of the logged-in user."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from penstock.deploy.clients.acls import AclSelection, AclView, listed_acls
from penstock.deploy.clients.quotas import list_quotas
from penstock.deploy.clients.wire import WireClient
from penstock.deploy.console.rights import log_in
from penstock.deploy.local.handle import LocalCluster
from penstock.protocol.client.errors import KafkaFailed
from tests.console.conftest import PASSWORD, admin_of, login
from tests.console.test_console_pages import text_of, wait_for_text
from tests.support.browser import axe_problems, fill, send_form
from tests.support.console import ConsoleProcess, Visitor

FIRST, SECOND = "first horse battery", "second horse battery"
CHANGES = {
    "/security/acls": "/security",
    "/security/acls/remove": "/security",
    "/security/users": "/security/users",
    "/security/users/password": "/security/users",
    "/security/users/delete": "/security/users",
    "/security/quotas": "/security/quotas",
}
"""Path of each change, and the page with its form."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("console") / "errors"


@pytest.fixture(scope="module")
def changing(secure_cluster: LocalCluster, errors: Path) -> Iterator[ConsoleProcess]:
    """A console with a login that may change the cluster."""
    arguments = ("--allow-changes", "--login")
    with ConsoleProcess(secure_cluster.state_path, *arguments, errors=errors) as console:
        yield console


@pytest.fixture
def as_admin(chrome: Chrome, changing: ConsoleProcess, secure_cluster: LocalCluster) -> Chrome:
    """A browser in which the super user is logged in."""
    chrome.delete_all_cookies()
    chrome.get(f"{changing.url}/login?next=%2Fsecurity")
    fill(chrome, user="admin", password=admin_of(secure_cluster).password)
    wait_for_text(chrome, "ACLs")
    return chrome


def can_log_in(cluster: LocalCluster, user: str, password: str) -> bool:
    try:
        log_in(cluster.bootstrap, admin_of(cluster), user, password)
    except KafkaFailed:
        return False
    return True


def test_user_is_created_gets_a_password_and_is_deleted(
    as_admin: Chrome,
    changing: ConsoleProcess,
    secure_cluster: LocalCluster,
    errors: Path,
    axe: Path,
) -> None:
    """The password appears in no page, address or log line of the console."""
    chrome = as_admin
    chrome.get(f"{changing.url}/security/users")
    send_form(chrome, "Create a user", name="carol", password=FIRST)
    wait_for_text(chrome, "Created carol, who logs in by SCRAM-SHA-512.")
    assert FIRST not in chrome.page_source + chrome.current_url
    assert can_log_in(secure_cluster, "carol", FIRST)
    assert axe_problems(chrome, axe) == []

    chrome.get(f"{changing.url}/security/users")
    send_form(chrome, "Create a user", name="carol", password=SECOND)
    wait_for_text(chrome, "user 'carol' exists")
    assert SECOND not in chrome.page_source + chrome.current_url
    chrome.get(f"{changing.url}/security/user?name=carol")
    send_form(chrome, "Change the password", password=SECOND, confirm="carl")
    wait_for_text(chrome, "type 'carol' into the field")
    assert can_log_in(secure_cluster, "carol", FIRST)
    chrome.get(f"{changing.url}/security/user?name=carol")
    send_form(chrome, "Change the password", password=SECOND, confirm="carol")
    wait_for_text(chrome, "carol has a new password.")
    assert not can_log_in(secure_cluster, "carol", FIRST)
    assert can_log_in(secure_cluster, "carol", SECOND)

    send_form(chrome, "Delete the user", confirm="carol")
    wait_for_text(chrome, "Deleted carol.")
    assert not can_log_in(secure_cluster, "carol", SECOND)
    logged = errors.read_text()
    assert FIRST not in logged
    assert SECOND not in logged


def test_acl_is_added_found_and_removed(
    as_admin: Chrome, changing: ConsoleProcess, secure_cluster: LocalCluster, axe: Path
) -> None:
    chrome = as_admin
    send_form(
        chrome,
        "Add an ACL",
        principal="User:dave",
        operation="write",
        resource="topic",
        name="wor",
        pattern="prefixed",
    )
    wait_for_text(chrome, "Added: allow User:dave write on topic wor.")
    expected = AclView("topic", "wor", "prefixed", "User:dave", "*", "write", "allow")
    assert acls_of(secure_cluster, "User:dave") == [expected]

    chrome.get(f"{changing.url}/security?name=words&resource=topic")
    rows = [row.text for row in chrome.find_elements(By.CSS_SELECTOR, "tbody tr")]
    assert len(rows) == 3, "alice, bob, and dave by the prefix"
    assert axe_problems(chrome, axe) == []
    chrome.get(f"{changing.url}/security?principal={quote('User:dave')}")
    chrome.find_element(By.PARTIAL_LINK_TEXT, "Remove").click()
    wait_for_text(chrome, "lose the permission immediately")
    fill(chrome, confirm="User:dave")
    wait_for_text(chrome, "Removed: allow User:dave write on topic wor.")
    assert acls_of(secure_cluster, "User:dave") == []


def acls_of(cluster: LocalCluster, principal: str) -> list[AclView]:
    with WireClient(cluster.bootstrap, admin_of(cluster)) as client:
        return listed_acls(client, AclSelection(principal=principal))


def test_quota_is_set_and_removed(
    as_admin: Chrome, changing: ConsoleProcess, secure_cluster: LocalCluster
) -> None:
    chrome = as_admin
    for value, said in (("12.5", "is set to 12.5."), ("", "is removed.")):
        chrome.get(f"{changing.url}/security/quotas")
        send_form(chrome, "Set a quota", user="alice", key="request_percentage", value=value)
        wait_for_text(chrome, f"request_percentage of user alice {said}")
        assert ("request_percentage=12.5" in text_of(chrome)) == bool(value)
        with WireClient(secure_cluster.bootstrap, admin_of(secure_cluster)) as client:
            found = list_quotas(client, {"user": "alice"})
        assert [view.quotas for view in found] == [{"request_percentage": 12.5}] * bool(value)


def test_user_changes_only_resources_that_the_acls_allow(
    changing: ConsoleProcess, secure_cluster: LocalCluster
) -> None:
    visitor, response = login(changing.url, "alice", PASSWORD)
    assert response.status == 303
    csrf = visitor.get("/topics").csrf
    fields = {"csrf": csrf, "name": "mallory", "password": FIRST, "mechanism": "SCRAM-SHA-256"}
    response = visitor.post("/security/users", fields)
    assert (response.status, "users cannot be listed" in response.words) == (403, True)
    assert not can_log_in(secure_cluster, "mallory", FIRST)
    acl = {"principal": "User:alice", "operation": "all", "resource": "cluster"}
    acl |= {"csrf": csrf, "permission": "allow", "pattern": "literal"}
    response = visitor.post("/security/acls", acl)
    assert (response.status, "CLUSTER_AUTHORIZATION_FAILED" in response.words) == (403, True)
    for topic in ("secrets", "absent"):  # no response says which of them exists
        response = visitor.post(f"/topics/{topic}/0/move", {"csrf": csrf, "target": "0"})
        assert (response.status, "you may not describe it" in response.words) == (403, True), topic


def test_security_changes_require_a_token_and_a_writable_console(
    changing: ConsoleProcess, secure_cluster: LocalCluster, cluster: LocalCluster
) -> None:
    visitor, _ = login(changing.url, "admin", admin_of(secure_cluster).password)
    fields = {"name": "alice", "confirm": "alice"}
    for path in CHANGES:
        response = visitor.post(path, {"csrf": "guessed", **fields})
        assert (response.status, "is not from a page" in response.words) == (403, True), path
    visitor = Visitor(cluster.state().console)
    csrf = visitor.get("/doctor").csrf
    for path, form in CHANGES.items():
        assert 'method="post"' not in visitor.get(form).text
        response = visitor.post(path, {"csrf": csrf, **fields})
        assert (response.status, "--allow-changes" in response.words) == (403, True), path
