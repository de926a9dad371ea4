"""The dev store provides the guarantee that fencing requires: of many conditional PUTs of one key,
one succeeds.
"""

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from penstock.deploy.local.moto_store import (
    COUNTS_PATH,
    listen,
    make_front,
    serve,
)
from penstock.deploy.local.signatures import ACCESS_KEY, is_signed
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.url import open_store, parse_store_url
from tests.support.waiting import PATIENCE_S

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


def test_the_dev_store_listens_on_ipv6() -> None:
    with listen(0, "::") as listening:
        socket.create_connection(("::1", listening.getsockname()[1]), 10).close()


def put(connection: http.client.HTTPConnection, key: str, body: bytes) -> int:
    connection.request(
        "PUT", f"/bucket/{key}", body, {"If-None-Match": "*", "Authorization": SIGNED}
    )
    response = connection.getresponse()
    response.read()
    return response.status


def test_one_of_many_conditional_puts_succeeds_and_connections_stay_open(port: int) -> None:
    keys, writers = 20, 8
    statuses: list[tuple[int, int]] = []
    barrier = threading.Barrier(writers)

    def write(writer: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        connection.connect()
        sock = connection.sock
        for key in range(keys):
            barrier.wait(PATIENCE_S)
            statuses.append((key, put(connection, f"k{key}", b"%d" % writer)))
        assert connection.sock is sock, "the store closed the connection between requests"
        connection.close()

    threads = [
        threading.Thread(target=write, args=(writer,), daemon=True) for writer in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(statuses) == {
        (key, status): count
        for key in range(keys)
        for status, count in ((200, 1), (412, writers - 1))
    }


def test_a_truncated_put_stores_nothing(port: int) -> None:
    """With a partial or empty WAL object in a slot, no broker could read or rewrite the slot."""
    head = (
        "PUT /bucket/cut HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {SIGNED}\r\nContent-Length: 14\r\nIf-None-Match: *\r\n\r\n"
    )
    request = head.encode() + b"the whole body"
    for size in range(len(request)):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as cut:
            cut.sendall(request[:size])
            cut.shutdown(socket.SHUT_WR)
            response = b"".join(iter(partial(cut.recv, 4096), b""))
        assert b" 200 " not in response, request[:size]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("HEAD", "/bucket/cut", headers={"Authorization": SIGNED})
    assert connection.getresponse().status == 404
    connection.close()


def test_served_requests_are_counted(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

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


SECRET = "secret-of-the-store"


@pytest.fixture(scope="module")
def signed_port() -> Iterator[int]:
    listening = listen(0)
    with listening:
        threading.Thread(
            target=serve, args=(make_front("bucket"), listening.dup(), SECRET), daemon=True
        ).start()
        yield listening.getsockname()[1]


def request(port: int, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}", **headers})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@pytest.mark.parametrize("path", ["/", "/bucket?list-type=2", "/bucket/key", "/bucket/-/counts"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_unsigned_requests_are_rejected_if_there_is_a_secret(
    signed_port: int, method: str, path: str
) -> None:
    assert request(signed_port, method, path).status == 403
    assert request(signed_port, method, path, Authorization=SIGNED).status == 403


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_requests_from_web_pages_are_rejected_even_without_a_secret(port: int, method: str) -> None:
    length = {"Content-Length": "0"}
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
    ):
        assert request(port, method, "/bucket?list-type=2", **length, **headers).status == 403
    assert request(port, "OPTIONS", "/bucket", Origin="http://evil.example").status == 501
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "bucket.localhost"):
        response = request(port, "GET", "/bucket?list-type=2", Host=host, Authorization=SIGNED)
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


async def test_stores_sign_every_kind_of_request(signed_port: int) -> None:
    endpoint = f"s3://bucket?endpoint=http://127.0.0.1:{signed_port}"
    key = "a b/ü+=&~"
    store = open_store(
        parse_store_url(
            f"{endpoint}&access_key={ACCESS_KEY}&secret_key={SECRET}".replace(" ", "%20")
        )
    )
    try:
        await store.put(key, b"body")
        assert bytes(await store.get(key)) == b"body"
        assert [item.key async for item in store.list("a b")] == [key]
        await store.delete([key])
    finally:
        await store.close()
    for keys in ("", f"&access_key={ACCESS_KEY}&secret_key=wrong"):
        store = open_store(parse_store_url(endpoint + keys))
        with pytest.raises(ObjectStoreError):
            await store.put("key", b"body")
        await store.close()


def test_signatures_cover_time_body_and_path() -> None:
    signing = AWSRequest("PUT", "http://127.0.0.1:9/bucket/key?b=2&a=1", data=b"body")
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET), "s3", "us-east-1").add_auth(signing)
    now = datetime.strptime(signing.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    headers = {"host": "127.0.0.1:9"} | {
        name.lower(): value for name, value in signing.headers.items()
    }

    def check(target: str, body: bytes, at: datetime, secret: str = SECRET) -> bool:
        return is_signed(secret, "PUT", target, headers, body, now=at)

    target = "/bucket/key?b=2&a=1"
    assert check(target, b"body", now)
    assert not check(target, b"other", now)
    assert not check("/bucket/other?b=2&a=1", b"body", now)
    assert not check(target, b"body", now + timedelta(minutes=16))
    assert not check(target, b"body", now, "other")
