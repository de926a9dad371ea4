"""Each page of the console in a browser on a real cluster."""

import re
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from penstock.deploy.console.formats import UNKNOWN
from penstock.deploy.local.handle import LocalCluster
from tests.console.conftest import HOSTILE, RECORDS
from tests.support.browser import DESK, PHONE, axe_problems, console_errors, fill, resize
from tests.support.console import ConsoleProcess, Visitor
from tests.support.waiting import PATIENCE_S, wait_until

WAIT_S = PATIENCE_S
PAGES = {
    "/": "Overview",
    "/nodes": "Write-ahead logs",
    "/topics?q=order": "orders",
    "/topics/orders": "orders-3",
    "/topics/orders/0": "Streams",
    "/topics/orders/messages": "without brokers",
    "/topics/orders/messages?value=in-no-record": "No record matches",
    "/topics/orders/0/move": "has never moved",
    "/moves": "No partition has moved",
    "/groups": HOSTILE,
    f"/groups/one?id={quote(HOSTILE, safe='')}": "Committed",
    "/transactions": HOSTILE,
    f"/transactions/one?id={quote(HOSTILE, safe='')}": "Ongoing",
    "/tables": "No topic is exported to a table",
    "/snapshots": "There are no snapshots",
    "/configs": "auto.create.topics.enable",
    "/security": "ACLs are disabled",
    "/security/users": "No users yet",
    "/security/user?name=ada": "This user is not in the metadata",
    "/security/quotas": "There are no quotas",
    "/doctor": "Examine the cluster",
    "/sql": "A topic is a table",
    "/topics/missing": "does not exist",
}
"""Text on each page, by path."""


MISSING = (
    "/topics/missing",
    "/topics/missing/messages",
    "/topics/missing/fork?name=new",
    "/topics/missing/0",
    "/topics/orders/99",
    "/topics/orders/99/move",
    "/streams/99999",
    "/objects/99999",
    "/groups/one?id=missing",
    "/transactions/one?id=missing",
    "/snapshots/one?name=missing",
    "/snapshots/restore?name=missing",
    "/configs?broker=99",
)
ACL = {
    "permission": "allow",
    "principal": "User:alice",
    "operation": "read",
    "resource": "topic",
    "name": "orders",
    "pattern": "literal",
    "host": "*",
}
MISSING_CHANGES = (
    ("/topics/missing/delete", {"confirm": "missing"}),
    ("/topics/missing/configs", {"key": "retention.ms", "value": "1000"}),
    ("/topics/missing/elect", {}),
    ("/topics/missing/fork", {"name": "new", "confirm": "new"}),
    ("/topics/missing/0/move", {"target": "0"}),
    ("/groups/delete", {"id": "missing", "confirm": "missing"}),
    ("/snapshots", {"name": "new", "topics": "orders, missing"}),
    ("/snapshots/delete", {"name": "missing", "confirm": "missing"}),
    ("/undelete", {"topic": "missing"}),
    ("/configs", {"key": "log.cleaner.enable", "value": "true", "broker": "99"}),
    ("/security/users/delete", {"name": "missing", "confirm": "missing"}),
)


def test_what_does_not_exist_is_not_reported_as_a_failure(console: ConsoleProcess) -> None:
    visitor = Visitor(console.url)
    csrf = visitor.get("/topics").csrf
    found = {path: visitor.get(path).status for path in MISSING}
    found |= {
        path: visitor.post(path, {"csrf": csrf, **fields}).status
        for path, fields in MISSING_CHANGES
    }
    assert found == dict.fromkeys(found, HTTPStatus.NOT_FOUND)
    assert visitor.get("/transactions?state=missing").status == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/topics/orders/configs", {"key": "retention.msx", "value": "1000"}),
        ("/configs", {"key": "log.cleaner.enablex", "value": "true"}),
        ("/topics", {"name": "new", "partitions": "1", "configs": "retention.msx=1000"}),
        ("/topics", {"name": "orders", "partitions": "1", "configs": ""}),
        ("/snapshots", {"name": "a/b", "topics": "orders"}),
        ("/security/acls/remove", {**ACL, "confirm": ACL["principal"]}),
        ("/security/quotas", {"user": "alice", "key": "producer_byte_rate", "value": "nan"}),
    ],
)
def test_invalid_change_is_not_reported_as_a_failure(
    console: ConsoleProcess, path: str, fields: dict[str, str]
) -> None:
    visitor = Visitor(console.url)
    response = visitor.post(path, {"csrf": visitor.get("/topics").csrf, **fields})
    assert (response.status, "Try again" in response.words) == (HTTPStatus.BAD_REQUEST, False)


def test_reset_changes_only_the_group_with_exactly_this_id(console: ConsoleProcess) -> None:
    """librdkafka would end the id at the null character."""
    visitor = Visitor(console.url)
    fields = {"id": "victim\0", "confirm": "victim\0", "topic": "orders", "to": "earliest"}
    fields |= {"csrf": visitor.get("/topics").csrf}
    assert visitor.post("/groups/reset", fields).status == HTTPStatus.SEE_OTHER
    assert visitor.get("/groups/one?id=victim%00").status == HTTPStatus.OK
    assert visitor.get("/groups/one?id=victim").status == HTTPStatus.NOT_FOUND


def text_of(chrome: Chrome) -> str:
    return str(chrome.execute_script("return document.body.innerText"))


def wait_for_text(chrome: Chrome, text: str) -> None:
    WebDriverWait(chrome, WAIT_S, poll_frequency=0.1).until(
        lambda found: text in text_of(found), f"{text!r} is not on the page: {text_of(chrome)}"
    )


@pytest.mark.parametrize("path", PAGES)
def test_each_page_shows_its_content(
    chrome: Chrome, console: ConsoleProcess, axe: Path, path: str
) -> None:
    """At desktop and phone widths, without errors in the browser log. With all parts of the page
    open, axe-core finds no problem, such as low contrast.
    """
    resize(chrome, DESK)
    console_errors(chrome)
    chrome.get(console.url + path)
    wait_for_text(chrome, PAGES[path])
    assert HOSTILE not in chrome.title or "Group" in chrome.title
    assert not chrome.execute_script("return document.title == '1'"), "a name became a script"
    assert not chrome.find_elements(By.CSS_SELECTOR, "img[src=x]"), "a name became an element"
    resize(chrome, PHONE)
    width, shown = chrome.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    resize(chrome, DESK)
    assert width <= shown == PHONE[0], f"{path} scrolls sideways on a phone: {width} pixels"
    # Only a page with an error adds its status, 400 or 502, to the log; scripts and the content
    # security policy add nothing.
    assert [line for line in console_errors(chrome) if "status of 40" not in line] == []
    assert problems_in_both_schemes(chrome, axe) == []


def problems_in_both_schemes(chrome: Chrome, axe: Path) -> list[str]:
    """Open all parts of the page; return the problems that axe-core finds in light and
    dark mode.
    """
    chrome.execute_script("for (const part of document.querySelectorAll('details')) part.open = 1")
    found = axe_problems(chrome, axe)
    resize(chrome, DESK, dark=True)
    found += [f"dark: {problem}" for problem in axe_problems(chrome, axe)]
    resize(chrome, DESK)
    return found


def test_records_are_found_by_key_and_shown_as_text(
    chrome: Chrome, console: ConsoleProcess
) -> None:
    key = quote(HOSTILE, safe="")
    chrome.get(f"{console.url}/topics/orders/messages?start=earliest&key={key}&limit=100")
    assert len(chrome.find_elements(By.CSS_SELECTOR, "details.record")) == RECORDS
    chrome.get(f"{console.url}/topics/orders/messages?start=earliest&value=%22order%22: 39")
    (record,) = chrome.find_elements(By.CSS_SELECTOR, "details.record")
    partition = record.find_element(By.CSS_SELECTOR, "summary span")
    assert partition.text in {"0", "1", "2", "3"}
    record.find_element(By.TAG_NAME, "summary").click()
    assert '"order": 39,\n' in record.text
    chrome.get(f"{console.url}/topics/clicks/messages")
    assert "may begin with schema id 7" in str(
        chrome.execute_script("return document.body.textContent")
    )


def test_record_links_lead_to_the_blocks_of_its_object(
    chrome: Chrome, console: ConsoleProcess, axe: Path
) -> None:
    """From topic to partition, stream and object, by links only."""
    chrome.get(f"{console.url}/topics/orders/{partition_with_records(chrome, console)}")
    chrome.find_element(By.XPATH, "//tr[td='data']//a").click()
    WebDriverWait(chrome, WAIT_S).until(has_ranges)
    assert problems_in_both_schemes(chrome, axe) == []
    chrome.find_element(By.CSS_SELECTOR, "a[href^='/objects/']").click()
    wait_for_text(chrome, "CRC32C")
    assert re.search(r"orders-\d", text_of(chrome))
    assert problems_in_both_schemes(chrome, axe) == []


def test_doctor_and_sql_results_are_accessible(
    chrome: Chrome, console: ConsoleProcess, axe: Path
) -> None:
    chrome.get(f"{console.url}/doctor")
    chrome.find_element(By.CSS_SELECTOR, "main form button").click()
    wait_for_text(chrome, "Examined")
    assert problems_in_both_schemes(chrome, axe) == []
    chrome.get(f"{console.url}/sql")
    fill(chrome, query="SELECT _partition, count(*) AS orders FROM orders GROUP BY ALL")
    wait_for_text(chrome, "1 row.")
    assert problems_in_both_schemes(chrome, axe) == []


def partition_with_records(chrome: Chrome, console: ConsoleProcess) -> int:
    chrome.get(f"{console.url}/topics/orders/messages")
    return int(chrome.find_element(By.CSS_SELECTOR, "details.record .partition").text)


def has_ranges(chrome: Chrome) -> bool:
    """Return whether the leader has committed ranges; otherwise reload the page."""
    if chrome.find_elements(By.CSS_SELECTOR, "a[href^='/objects/']"):
        return True
    chrome.refresh()
    return False


def test_move_is_shown_in_progress(
    chrome: Chrome, console: ConsoleProcess, cluster: LocalCluster
) -> None:
    """One window shows the move that another one starts; its six steps appear without a reload."""
    page = f"{console.url}/topics/clicks/1/move"
    chrome.get(page)
    wait_for_text(chrome, "live")
    watching = chrome.current_window_handle
    chrome.switch_to.new_window("tab")
    try:
        chrome.get(page)
        chrome.find_element(By.CSS_SELECTOR, "form.inline button").click()
        wait_for_text(chrome, "moves to broker")
    finally:
        chrome.close()
        chrome.switch_to.window(watching)
    wait_for_text(chrome, "done")
    # The brokers report their steps one after the other.
    wait_until(lambda: [row[0] for row in steps_of(chrome)] == list("12344566"), WAIT_S)
    wait_until(
        lambda: all(re.search(r"[\d.,]+ m?s\b", " ".join(row)) for row in steps_of(chrome)), WAIT_S
    )
    assert len(cluster.brokers()) == 2


def steps_of(chrome: Chrome) -> list[list[str]]:
    """Return the cells of the steps at one moment, because events replace them."""
    found: list[list[str]] = chrome.execute_script(
        "return [...document.querySelectorAll('.steps tbody tr')].map("
        "(row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return found


def test_pages_can_be_used_with_the_keyboard(chrome: Chrome, console: ConsoleProcess) -> None:
    """Tab first reaches the skip link, then the navigation; / focuses the search."""
    chrome.get(f"{console.url}/topics")
    body = chrome.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert chrome.switch_to.active_element.text == "Skip to content"
    chrome.switch_to.active_element.send_keys(Keys.ENTER)
    assert chrome.switch_to.active_element.get_attribute("id") == "main"
    chrome.switch_to.active_element.send_keys("/")
    field = chrome.switch_to.active_element
    assert field.get_attribute("name") == "q"
    field.send_keys("order", Keys.ENTER)
    wait_for_text(chrome, "1 topic")
    assert "clicks" not in text_of(chrome)


def test_config_is_chosen_from_a_list_with_descriptions(
    chrome: Chrome, console: ConsoleProcess
) -> None:
    chrome.get(f"{console.url}/topics/orders")
    chrome.find_element(By.XPATH, "//summary[.='Alter a config']").click()
    Select(chrome.find_element(By.NAME, "key")).select_by_visible_text("retention.ms")
    explained = chrome.find_element(By.CSS_SELECTOR, "[data-choice]").text
    assert re.search(r"\w.*Unit: milliseconds, or as in 7d\. Default: (\d+)\. Now: \1\.", explained)
    chrome.get(f"{console.url}/configs?q=num.partitions")
    row = chrome.find_element(By.CSS_SELECTOR, "[aria-label=Configs] tbody tr").text
    assert re.search(r"num\.partitions\n\w.*number", row, re.DOTALL)


def test_internal_topics_are_shown_on_request(chrome: Chrome, console: ConsoleProcess) -> None:
    chrome.get(f"{console.url}/topics")
    wait_for_text(chrome, "internal topics hidden")
    assert "__consumer_offsets" not in text_of(chrome)
    create = chrome.find_element(By.XPATH, "//summary[.='Create a topic']")
    table = chrome.find_element(By.CSS_SELECTOR, "[aria-label=Topics]")
    assert create.location["y"] < table.location["y"]
    chrome.find_element(By.NAME, "internal").click()
    chrome.find_element(By.CSS_SELECTOR, ".search button").click()
    wait_for_text(chrome, "__consumer_offsets")


def test_group_list_shows_the_lag(chrome: Chrome, console: ConsoleProcess) -> None:
    chrome.get(f"{console.url}/groups")

    def lag() -> str:
        cells = chrome.execute_script(
            "return [...document.querySelectorAll('[aria-label=Groups] tbody tr')].map("
            "(row) => [...row.cells].map((cell) => cell.innerText))"
        )
        return next(row[3] for row in cells if row[0] == HOSTILE)

    wait_until(lambda: lag() != UNKNOWN, WAIT_S)
    assert int(lag()) in range(RECORDS)


def test_hidden_page_sends_no_requests_until_it_is_visible(
    chrome: Chrome, console: ConsoleProcess
) -> None:
    """The test browser has no hidden tabs, so a script tells the page that it is hidden."""
    chrome.get(f"{console.url}/groups")
    chrome.execute_script(
        "window.stopped = 0; window.sent = 0; window.visibility = 'hidden';"
        "Object.defineProperty(document, 'visibilityState', { get: () => window.visibility });"
        "document.dispatchEvent(new Event('visibilitychange'));"
        "document.addEventListener('htmx:beforeRequest', (event) => {"
        "  if (event.defaultPrevented) stopped += 1; else sent += 1; });"
    )
    wait_until(lambda: chrome.execute_script("return stopped"))
    assert chrome.execute_script("return sent") == 0
    chrome.execute_script(
        "window.visibility = 'visible'; document.dispatchEvent(new Event('visibilitychange'));"
        "window.sentAtOnce = sent;"
    )
    assert chrome.execute_script("return sentAtOnce") == 1
    wait_until(lambda: chrome.execute_script("return sent") > 1)


def test_requests_for_missing_resources_are_not_retried(
    chrome: Chrome, console: ConsoleProcess
) -> None:
    for path, problem, link in (
        ("/nothing", "This console has no page /nothing", "All topics"),
        ("/topics/missing", "topic 'missing' does not exist", "All topics"),
        ("/objects/12345", "object 12345 does not exist", "All topics"),
        ("/groups/one?id=missing", "group 'missing' does not exist", "All groups"),
    ):
        assert Visitor(console.url).get(path).status == HTTPStatus.NOT_FOUND
        chrome.get(console.url + path)
        assert problem in text_of(chrome)
        assert "ry again" not in text_of(chrome)
        assert chrome.find_element(By.LINK_TEXT, link)


def test_config_table_fits_a_small_window(chrome: Chrome, console: ConsoleProcess) -> None:
    resize(chrome, (1200, 800))
    chrome.get(f"{console.url}/configs")
    width, shown = chrome.execute_script(
        "const scroll = document.querySelector('[aria-label=Configs]');"
        "return [scroll.scrollWidth, scroll.clientWidth]"
    )
    resize(chrome, DESK)
    assert width <= shown


def test_charts_form_a_two_by_two_grid_and_tables_on_phones_show_that_they_scroll(
    chrome: Chrome, console: ConsoleProcess
) -> None:
    resize(chrome, (1600, 900))
    chrome.get(console.url)
    columns = chrome.execute_script(
        "return [...document.querySelectorAll('figure')].map((each) => each.offsetLeft)"
    )
    assert columns[0] == columns[2] < columns[1] == columns[3]
    resize(chrome, PHONE)
    chrome.get(f"{console.url}/topics")
    first, shade = chrome.execute_script(
        "const scroll = document.querySelector('[aria-label=Topics]'); scroll.scrollLeft = 99;"
        "return [scroll.querySelector('td').getBoundingClientRect().left - scroll"
        ".getBoundingClientRect().left, getComputedStyle(scroll).backgroundImage]"
    )
    resize(chrome, DESK)
    assert 0 <= first < 2, "the names scroll away"
    assert shade.count("gradient") == 4
    explained = chrome.find_element(By.XPATH, "//abbr[.='Without leader']")
    assert "until a leader is elected" in str(explained.get_attribute("title"))


def test_chosen_theme_is_kept(chrome: Chrome, console: ConsoleProcess) -> None:
    chrome.get(f"{console.url}/doctor")
    chrome.find_element(By.ID, "theme").click()
    chrome.get(f"{console.url}/security")
    root = chrome.find_element(By.TAG_NAME, "html")
    assert root.get_attribute("data-theme") == "dark"
    chrome.find_element(By.ID, "theme").click()
    assert root.get_attribute("data-theme") == "light"
