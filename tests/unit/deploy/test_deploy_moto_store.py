"""The dev store keeps the promise that fencing needs: of many conditional PUTs of one key, one
succeeds.
"""

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from penstock.deploy.local.moto_store import (
    COUNTS_PATH,
    listen,
    make_front,
    serve,
)

SIGNED = (
    "AWS4-HMAC-SHA256 Credential=local/20130101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listening = listen(0)
    with listening:
        port = listening.getsockname()[1]
        threading.Thread(
            target=serve, args=(make_front("bucket"), listening.dup()), daemon=True
        ).start()
        yield port


def test_it_listens_where_pods_have_addresses_of_ipv6() -> None:
    with listen(0, "::") as listening:
        socket.create_connection(("::1", listening.getsockname()[1]), 10).close()


def put(connection: http.client.HTTPConnection, key: str, body: bytes) -> int:
    connection.request(
        "PUT", f"/bucket/{key}", body, {"If-None-Match": "*", "Authorization": SIGNED}
    )
    response = connection.getresponse()
    response.read()
    return response.status


def test_one_of_many_conditional_puts_wins_and_connections_stay_open(port: int) -> None:
    keys, writers = 20, 8
    statuses: list[tuple[int, int]] = []
    barrier = threading.Barrier(writers)

    def write(writer: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.connect()
        sock = connection.sock
        for key in range(keys):
            barrier.wait(20)
            statuses.append((key, put(connection, f"k{key}", b"%d" % writer)))
        assert connection.sock is sock, "the store closed the connection between requests"
        connection.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(statuses) == {
        (key, status): count
        for key in range(keys)
        for status, count in ((200, 1), (412, writers - 1))
    }


def test_a_put_that_is_cut_short_leaves_nothing_wherever_it_is_cut(port: int) -> None:
    """No broker could read a partial or empty WAL object in a slot, or write the slot again."""
    head = (
        "PUT /bucket/cut HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {SIGNED}\r\nContent-Length: 14\r\nIf-None-Match: *\r\n\r\n"
    )
    request = head.encode() + b"the whole body"
    for size in range(len(request)):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as cut:
            cut.sendall(request[:size])
            cut.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(partial(cut.recv, 4096), b""))
        assert b" 200 " not in answer, request[:size]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("HEAD", "/bucket/cut", headers={"Authorization": SIGNED})
    assert connection.getresponse().status == 404
    connection.close()


def test_it_counts_what_it_served(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def counts() -> dict[str, int]:
        import json

        connection.request("GET", COUNTS_PATH)
        return dict(json.loads(connection.getresponse().read()))

    before = counts()
    put(connection, "counted", b"12345")
    after = counts()
    connection.close()
    assert after["PUT"] - before.get("PUT", 0) == 1
    assert after["PUT_bytes"] - before.get("PUT_bytes", 0) == 5
