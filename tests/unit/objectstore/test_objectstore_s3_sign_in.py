"""Every source of credentials that `aws s3 ls` accepts, their renewal, and errors that suggest a
command.
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import (
    AccessDenied,
    InvalidStoreConfig,
    SignInFailed,
    Unavailable,
)
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.renewal import AwsKeys, RenewedCredentials
from penstock.objectstore.s3 import S3Store
from tests.support.aws_services import POD_TOKEN, SSO_TOKEN, AwsServices, aws_services
from tests.support.waiting import PATIENCE_S, until

ROLE = "arn:aws:iam::123456789012:role/penstock"
MFA = "arn:aws:iam::123456789012:mfa/me"
PATIENCE_MS = 100_000
SSO = """
    [sso-session corp]
    sso_start_url = https://corp.awsapps.com/start
    sso_region = us-east-1
    sso_registration_scopes = sso:account:access
    [profile dev]
    sso_session = corp
    sso_account_id = 123456789012
    sso_role_name = reader
"""
Setup = Callable[["Aws"], None]


class Aws:
    """The home directory and the environment of a user of AWS tools."""

    def __init__(self, home: Path, services: AwsServices, patch: pytest.MonkeyPatch) -> None:
        self.home, self.services, self._patch = home, services, patch
        (home / ".aws").mkdir()

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def files(self, config: str = "", keys: str = "") -> None:
        (self.home / ".aws/config").write_text(textwrap.dedent(config))
        (self.home / ".aws/credentials").write_text(textwrap.dedent(keys))

    def cache(self, folder: str, name: str, content: object) -> None:
        file = self.home / ".aws" / folder / "cache" / f"{name}.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(content))

    def sso_token(self, expires_in: timedelta) -> None:
        until = f"{datetime.now(UTC) + expires_in:%Y-%m-%dT%H:%M:%SZ}"
        token = {"accessToken": SSO_TOKEN, "expiresAt": until}
        self.cache("sso", hashlib.sha1(b"corp").hexdigest(), token)

    def program(self, body: str) -> str:
        """Write a credential_process; return the line for the profile."""
        file = self.home / "program.py"
        file.write_text(textwrap.dedent(body))
        return f"credential_process = {sys.executable} -IS {file}"

    def store(self, meter: StoreMeter | None = None) -> S3Store:
        return S3Store(
            S3Config(
                bucket="bucket",
                endpoint=self.services.url,
                path_style=True,
                deadline_ms=PATIENCE_MS,
            ),
            meter,
        )


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # botocore computes these when it is imported.
    for module in ("botocore.credentials.SSOProvider", "botocore.tokens.SSOTokenProvider"):
        monkeypatch.setattr(f"{module}._SSO_TOKEN_CACHE_DIR", f"{tmp_path}/.aws/sso/cache")
    with aws_services() as services:
        yield Aws(tmp_path, services, monkeypatch)


def printed(key: str, lifetime_s: float, before: str = "") -> str:
    """Return a program that prints new keys with each run and records them in a file."""
    return f"""
        import datetime, json, os
        {before}
        with open({key!r}, "a+") as runs:
            runs.seek(0)
            key = "ASIAPROCESS%d" % len(runs.readlines())
            until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds={lifetime_s})
            print(key, until.timestamp(), file=runs)
        print(json.dumps({{"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s",
            "SessionToken": "of " + key, "Expiration": until.isoformat()}}))
    """


def static(aws: Aws) -> None:
    aws.files(keys="[default]\naws_access_key_id = AKIA\naws_secret_access_key = S%x\n")


def named(aws: Aws) -> None:
    aws.files("[profile work]\naws_access_key_id = AKIA\naws_secret_access_key = s\n")
    aws.set(AWS_PROFILE="work")


def process(aws: Aws) -> None:
    aws.files(f"[default]\n{aws.program(printed(str(aws.home / 'runs'), 3_600))}")


def sso(aws: Aws) -> None:
    aws.files(SSO)
    aws.sso_token(timedelta(hours=1))
    aws.set(AWS_PROFILE="dev", AWS_ENDPOINT_URL_SSO=aws.services.url)


def ec2(aws: Aws) -> None:
    aws.set(AWS_EC2_METADATA_DISABLED="false", AWS_EC2_METADATA_SERVICE_ENDPOINT=aws.services.url)


def eks_pod(aws: Aws) -> None:
    token = aws.home / "token"
    token.write_text(POD_TOKEN)
    aws.set(
        AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{aws.services.url}/eks",
        AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token),
    )


def ecs(aws: Aws) -> None:
    aws.set(AWS_CONTAINER_CREDENTIALS_RELATIVE_URI="/ecs")


def mfa(aws: Aws) -> None:
    """Return a profile with MFA: `aws` has prompted for the code and cached the keys."""
    aws.files(
        f"""
        [profile admin]
        role_arn = {ROLE}
        mfa_serial = {MFA}
        source_profile = default
        """,
        "[default]\naws_access_key_id = AKIA\naws_secret_access_key = s\n",
    )
    named = json.dumps({"RoleArn": ROLE, "SerialNumber": MFA}, sort_keys=True)
    key, until = aws.services.keys("MFA")
    keys = {"AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": f"of {key}"}
    keys["Expiration"] = until.isoformat()
    aws.cache("cli", hashlib.sha1(named.encode()).hexdigest(), {"Credentials": keys})
    aws.set(AWS_PROFILE="admin")


@pytest.mark.parametrize(
    ("setup", "key"),
    [
        (static, "AKIA"),
        (named, "AKIA"),
        (process, "ASIAPROCESS0"),
        (sso, "ASIASSO0"),
        (ec2, "ASIAEC20"),
        (eks_pod, "ASIAEKS0"),
        (ecs, "ASIAECS0"),
        (mfa, "ASIAMFA0"),
    ],
)
async def test_requests_are_signed_with_the_keys_of_each_source(
    setup: Setup, key: str, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = aws.services.url.removeprefix("http://")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.IP_ADDRESS", address)
    setup(aws)
    store = aws.store()
    await asyncio.gather(*(store.put(f"k{number}", b"") for number in range(8)))
    await store.close()
    assert aws.services.used == [key] * 8
    assert len(aws.services.issued) <= 1


def chain(aws: Aws) -> None:
    aws.files(
        f"[profile second]\nrole_arn = {ROLE}2\nsource_profile = first\n"
        f"[profile first]\nrole_arn = {ROLE}1\nsource_profile = default\n",
        "[default]\naws_access_key_id = AKIA\naws_secret_access_key = s\n",
    )
    aws.set(AWS_PROFILE="second")


def of_environment(aws: Aws) -> None:
    """Return a role whose source credentials are those of the pod."""
    eks_pod(aws)
    aws.files(f"""
        [default]
        role_arn = {ROLE}
        credential_source = EcsContainer
    """)


def irsa(aws: Aws) -> None:
    token = aws.home / "token"
    token.write_text("x" * 20)
    aws.set(AWS_WEB_IDENTITY_TOKEN_FILE=str(token), AWS_ROLE_ARN=ROLE)


@pytest.fixture(scope="module")
def sts_endpoint(moto_endpoint: str) -> str:
    """Return an STS endpoint. moto imports IAM at the first request, which may take longer than the
    sign-in timeout.
    """
    query = "Action=GetCallerIdentity&Version=2011-06-15"
    request = urllib.request.Request(
        moto_endpoint,
        query.encode(),
        {"Authorization": "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/sts/aws4_request"},
    )
    with urllib.request.urlopen(request) as response:
        assert b"GetCallerIdentityResult" in response.read()
    return moto_endpoint


@pytest.mark.parametrize("setup", [chain, of_environment, irsa])
async def test_roles_are_assumed_through_sts(setup: Setup, aws: Aws, sts_endpoint: str) -> None:
    setup(aws)
    aws.set(AWS_ENDPOINT_URL_STS=sts_endpoint)
    store = aws.store()
    await store.put("k", b"")
    await store.put("k", b"")
    await store.close()
    first, second = aws.services.used
    assert first == second
    assert first.startswith("ASIA")
    assert first not in aws.services.issued


async def test_expiring_keys_are_renewed_without_a_failed_request(
    aws: Aws,
) -> None:
    aws.services.lifetime_s = 2
    eks_pod(aws)
    meter = StoreMeter()
    store = aws.store(meter)
    writes = 0

    async def write() -> bool:
        nonlocal writes
        await asyncio.gather(*(store.put("k", b"") for _ in range(4)))
        writes += 4
        return len(set(aws.services.used)) >= 4

    await until(write)
    await store.close()
    assert aws.services.refused == []
    assert len(aws.services.used) == writes
    signed_in = meter.snapshot().operations["sign_in"]
    assert signed_in.count >= 4
    assert not signed_in.errors


async def test_a_program_whose_keys_expire_is_run_again(aws: Aws) -> None:
    runs = aws.home / "runs"
    aws.files(f"[default]\n{aws.program(printed(str(runs), 2))}")
    store = aws.store()

    async def write() -> bool:
        aws.services.expires_at = {
            key: float(expires) for key, expires in map(str.split, lines_of(runs))
        }
        await store.put("k", b"")
        return len(set(aws.services.used)) >= 3

    await until(write)
    await store.close()
    assert aws.services.refused == []


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def test_a_sign_in_blocks_neither_the_event_loop_nor_later_requests(aws: Aws) -> None:
    """The program waits until the event loop creates a file."""
    go = aws.home / "go"
    waits = f"import time\n        while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    aws.files(f"[default]\n{aws.program(printed(str(aws.home / 'runs'), 3_600, waits))}")
    store = aws.store()
    writes = [asyncio.ensure_future(store.put("k", b"")) for _ in range(8)]
    await asyncio.sleep(0.1)
    writes[0].cancel()  # the sign-in continues for the other requests
    go.touch()
    done = await asyncio.gather(*writes, return_exceptions=True)
    await store.close()
    assert [type(result) for result in done] == [asyncio.CancelledError, *[str] * 7]
    assert len(lines_of(aws.home / "runs")) == 1


class Source:
    """A credential source that signs in when the test says so."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.calls = 0
        self.go = threading.Semaphore(0)
        self.result: AwsKeys | Exception = AwsKeys("A", "s", "t", 3_600)

    def sign_in(self) -> AwsKeys:
        self.calls += 1
        assert self.go.acquire(timeout=PATIENCE_S)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def requested(keys: RenewedCredentials) -> str:
    given = keys()
    given = given if isinstance(given, dict) else await given
    assert isinstance(given["access_key_id"], str)
    return given["access_key_id"]


async def test_requests_use_the_old_keys_while_new_ones_are_fetched() -> None:
    source, meter = Source(), StoreMeter()
    keys = RenewedCredentials(source.sign_in, meter, wait_s=60, clock=lambda: source.now)
    first = [asyncio.ensure_future(requested(keys)) for _ in range(8)]
    source.go.release()
    assert await asyncio.gather(*first) == ["A"] * 8
    source.now += 2_699
    assert await requested(keys) == "A"
    assert source.calls == 1
    source.now += 1  # 15 minutes before they expire
    source.result = AwsKeys("B", "s", "t", 600)
    assert await asyncio.gather(*(requested(keys) for _ in range(8))) == ["A"] * 8
    assert source.calls == 2
    source.go.release()
    await until(lambda: meter.snapshot().operations["sign_in"].count == 2)
    assert await requested(keys) == "B"


async def test_a_failed_renewal_is_logged_and_counted_and_requests_continue() -> None:
    source, meter = Source(), StoreMeter()
    keys = RenewedCredentials(source.sign_in, meter, wait_s=60, clock=lambda: source.now)
    source.go.release(10)
    assert await requested(keys) == "A"
    source.now += 2_700
    source.result = SignInFailed("the session ended. Sign in: aws sso login --profile dev")
    with capture_logs() as logs:
        assert await requested(keys) == "A"
        await until(lambda: logs)
        assert await requested(keys) == "A"
    assert source.calls == 2
    assert [(entry["event"], entry["log_level"], entry["keys_expire_s"]) for entry in logs] == [
        ("object_store_credentials_renewal_failed", "warning", 900)
    ]
    assert logs[0]["reason"].endswith("aws sso login --profile dev")
    assert meter.snapshot().operations["sign_in"].errors == {"SignInFailed": 1}
    # now requests fail with a retriable error, because the user may sign in meanwhile
    source.now += 900
    with pytest.raises(OSError, match="aws sso login"):
        await requested(keys)
    with pytest.raises(OSError, match="aws sso login"):
        await requested(keys)
    assert source.calls == 3
    source.now += 60
    source.result = AwsKeys("B", "s", None, None)
    assert await requested(keys) == "B"


async def test_waiting_for_keys_is_limited() -> None:
    source = Source()
    keys = RenewedCredentials(source.sign_in, wait_s=0.01, clock=lambda: source.now)
    for _ in range(3):
        with pytest.raises(OSError, match="the sign-in has not ended"):
            await requested(keys)
    assert source.calls == 1
    source.go.release()
    keys_later = RenewedCredentials(source.sign_in, wait_s=60, clock=lambda: source.now)
    source.go.release()
    assert await requested(keys_later) == "A"


def test_the_repr_of_keys_contains_no_secret() -> None:
    assert repr(AwsKeys("A", "secret", "session", None)) == ("AwsKeys(access_key='A', left_s=None)")


async def test_keys_in_files_are_reread() -> None:
    source = Source()
    source.go.release(10)
    source.result = AwsKeys("A", "s", None, None)
    keys = RenewedCredentials(source.sign_in, wait_s=60, clock=lambda: source.now)
    assert await requested(keys) == "A"
    source.result = AwsKeys("B", "s", None, None)
    source.now += 299
    assert await requested(keys) == "A"
    source.now += 1
    assert await requested(keys) == "A"
    await until(lambda: source.calls == 2)

    async def replaced() -> bool:
        return await requested(keys) == "B"

    await until(replaced)


def sso_without_login(aws: Aws) -> None:
    aws.files(SSO)
    aws.set(AWS_PROFILE="dev")


def sso_expired(aws: Aws) -> None:
    sso_without_login(aws)
    aws.sso_token(timedelta(hours=-1))


def sso_of_the_source(aws: Aws) -> None:
    aws.files(f"{SSO}\n    [profile admin]\n    role_arn = {ROLE}\n    source_profile = dev\n")
    aws.set(AWS_PROFILE="admin")


def sso_logged_out(aws: Aws) -> None:
    """Return a profile whose SSO token was revoked."""
    sso(aws)
    file = next((aws.home / ".aws/sso/cache").iterdir())
    file.write_text(file.read_text().replace(SSO_TOKEN, "revoked"))


def login(aws: Aws) -> None:
    aws.files("[default]\nlogin_session = arn:aws:iam::123456789012:user/me\n")


def mfa_code(aws: Aws) -> None:
    mfa(aws)
    next((aws.home / ".aws/cli/cache").iterdir()).unlink()


def failing_process(aws: Aws) -> None:
    line = aws.program("import sys; sys.exit('the vault\\n is locked')")
    aws.files(f"[default]\n{line}")


def talking_process(aws: Aws) -> None:
    aws.files(f"[profile p]\n{aws.program('print(1, 2)')}")
    aws.set(AWS_PROFILE="p")


def missing_program(aws: Aws) -> None:
    aws.files("[default]\ncredential_process = /absent/program\n")


def half_a_key(aws: Aws) -> None:
    aws.files(keys="[default]\naws_access_key_id = AKIA\n")


def no_source(aws: Aws) -> None:
    aws.files(f"[profile p]\nrole_arn = {ROLE}\nsource_profile = absent\n")
    aws.set(AWS_PROFILE="p")


def role_refused(aws: Aws) -> None:
    chain(aws)
    aws.set(AWS_ENDPOINT_URL_STS=aws.services.url)


def no_token(aws: Aws) -> None:
    irsa(aws)
    (aws.home / "token").unlink()


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        (sso_without_login, r"profile 'dev'.* aws sso login --profile dev$"),
        (sso_expired, r"profile 'dev'.* aws sso login --profile dev$"),
        (sso_of_the_source, r"profile 'admin'.* aws sso login --profile dev$"),
        (sso_logged_out, r"profile 'dev'.* aws sso login --profile dev$"),
        (login, r'pip install "botocore\[crt\]"$'),
        (mfa_code, r"MFA code for .*mfa/me.* aws sts get-caller-identity --profile admin$"),
        (failing_process, r"the vault is locked.* Run its credential_process"),
        (talking_process, r"profile 'p'.* credential_process by hand.* --profile p$"),
        (missing_program, r"/absent/program.* credential_process by hand"),
        (half_a_key, r"Partial credentials .*aws_secret_access_key.* aws sts get-caller-identity$"),
        (no_source, r"profile 'p'.*\"absent\" .*does not exist.* --profile p$"),
        (role_refused, r"profile 'second'.*not allowed to assume the role.*get-caller-identity"),
        (no_token, r"No such file.*token"),
        (lambda aws: None, r"no AWS credentials: .* AWS_ACCESS_KEY_ID .* or aws configure sso$"),
    ],
)
async def test_an_error_suggests_a_command(setup: Setup, says: str, aws: Aws) -> None:
    setup(aws)
    meter = StoreMeter()
    store = aws.store(meter)
    for _ in range(2):
        with pytest.raises(SignInFailed, match=says) as caught:
            await store.put("k", b"")
        assert not caught.value.retriable
        assert "\n" not in str(caught.value)
    assert meter.snapshot().operations["sign_in"].errors == {"SignInFailed": 1}
    await store.close()


@pytest.mark.parametrize(
    ("variables", "config", "says"),
    [
        ({"AWS_PROFILE": "absent"}, SSO, r"'absent' is not in .* contain: dev\. .*AWS_PROFILE"),
        ({"AWS_DEFAULT_PROFILE": "absent"}, "", r"'absent' is not in .* contain: none\."),
        ({}, "no section", r"Unable to parse config file: .*/config\. It must be"),
        ({"AWS_ACCESS_KEY_ID": "A"}, "", r"AWS_SECRET_ACCESS_KEY is not\. Set both"),
        ({}, "[default]\nca_bundle = /absent/ca.pem", r"/absent/ca.pem.* cannot be read"),
    ],
)
def test_a_profile_is_checked_when_the_store_is_opened(
    variables: dict[str, str], config: str, says: str, aws: Aws
) -> None:
    aws.files(config)
    aws.set(**variables)
    with pytest.raises(InvalidStoreConfig, match=says):
        aws.store()


@pytest.mark.parametrize("setup", [eks_pod, ecs])
async def test_a_failed_container_credentials_request_is_retriable(
    setup: Setup, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    address = aws.services.url.removeprefix("http://")
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.IP_ADDRESS", address)
    setup(aws)
    aws.services.failure = 500
    store = aws.store()
    with pytest.raises(Unavailable):
        await store.put("k", b"")
    await store.close()


async def test_a_failed_metadata_request_counts_as_no_role(aws: Aws) -> None:
    """botocore does not distinguish a failed IMDS from a machine without a role."""
    ec2(aws)
    aws.services.failure = 500
    store = aws.store()
    with pytest.raises(SignInFailed, match="this machine has no role"):
        await store.put("k", b"")
    await store.close()


@pytest.mark.parametrize(
    ("status", "code", "retriable"),
    [
        (400, "Throttling", True),
        (400, "ValidationError", False),
        (400, "NotThrottled", False),
        (403, "AccessDenied", False),
        (408, "", True),
        (410, "", True),
        (429, "", True),
        (500, "", True),
    ],
)
async def test_a_failed_sts_request_is_retriable(
    status: int, code: str, retriable: bool, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", _no_delay)
    irsa(aws)
    aws.set(AWS_ENDPOINT_URL_STS=aws.services.url)
    aws.services.failure, aws.services.code = status, code
    store = aws.store()
    with pytest.raises((Unavailable, SignInFailed)) as caught:
        await store.put("k", b"")
    assert caught.value.retriable == retriable
    await store.close()


def _no_delay(*_: object) -> float:
    return 0.0


@pytest.mark.parametrize("of_source", [False, True])
async def test_a_hanging_program_is_killed(
    of_source: bool, aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are programs that it started, which keep its output open."""
    monkeypatch.setattr("penstock.objectstore.s3_sign_in.PROGRAM_LIMIT_S", 0.3)
    line = aws.program("import subprocess; subprocess.run(['sleep', '600'])")
    role = f"role_arn = {ROLE}\nsource_profile = p" if of_source else line
    aws.files(f"[profile p]\n{line}\n[default]\n{role}\n")
    store = aws.store()
    with pytest.raises(SignInFailed, match=r"did not end within 0\.3 s.* credential_process by"):
        await store.put("k", b"")
    await store.close()


@pytest.mark.parametrize("of_source", [False, True])
async def test_a_program_gets_no_stdin(of_source: bool, aws: Aws, moto_endpoint: str) -> None:
    """Console input belongs to the node, not to a program that reads it."""
    runs = aws.home / "runs"
    reads = f"import sys\n        open({str(aws.home / 'read')!r}, 'w').write(sys.stdin.read())"
    line = aws.program(printed(str(runs), 3_600, reads))
    role = f"role_arn = {ROLE}\nsource_profile = p" if of_source else line
    aws.files(f"[profile p]\n{line}\n[default]\n{role}\n")
    aws.set(AWS_ENDPOINT_URL_STS=moto_endpoint)
    reader, writer = os.pipe()
    kept = os.dup(0)
    os.write(writer, b"typed")
    os.close(writer)
    os.dup2(reader, 0)
    try:
        store = aws.store()
        await store.put("k", b"")
        await store.close()
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reader)
    assert (aws.home / "read").read_text() == ""
    assert len(lines_of(runs)) == 1


async def test_a_sign_in_is_retried_if_no_thread_is_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source()
    keys = RenewedCredentials(source.sign_in, wait_s=60, clock=lambda: source.now)
    source.go.release(10)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(OSError, match="can't start new thread"):
            await requested(keys)
    source.now += 60
    assert await requested(keys) == "A"
    source.now += 3_000
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert await requested(keys) == "A"  # still valid


async def test_an_expired_token_is_reported_as_expired(aws: Aws) -> None:
    aws.set(AWS_ACCESS_KEY_ID="A", AWS_SECRET_ACCESS_KEY="s", AWS_SESSION_TOKEN="of A")
    aws.services.expires_at["A"] = 0
    store = aws.store()
    with pytest.raises(AccessDenied, match="ExpiredToken has expired"):
        await store.put("k", b"")
    await store.close()


@pytest.mark.parametrize(
    ("variables", "config", "region"),
    [
        ({}, "[default]\nregion = eu-1\n", "eu-1"),
        ({"AWS_PROFILE": "p"}, "[profile p]\nregion = eu-2\n", "eu-2"),
        ({"AWS_REGION": "us-9"}, "[default]\nregion = eu-1\n", "us-9"),
        ({"AWS_DEFAULT_REGION": "us-8"}, "[default]\nregion = eu-1\n", "us-8"),
        ({}, "", "us-east-1"),
    ],
)
@pytest.mark.parametrize("has_keys", [True, False])
async def test_the_region_comes_from_the_environment_or_the_profile(
    variables: dict[str, str], config: str, region: str, has_keys: bool, aws: Aws
) -> None:
    keys = "aws_access_key_id = AKIA\naws_secret_access_key = s\n"
    aws.files(config, f"[default]\n{keys}[p]\n{keys}")
    aws.set(**variables)
    if has_keys:
        aws.set(AWS_ACCESS_KEY_ID="A", AWS_SECRET_ACCESS_KEY="s")
    store = aws.store()
    await store.put("k", b"")
    await store.close()
    assert aws.services.used == ["A" if has_keys else "AKIA"]
    assert aws.services.regions == {region}


def test_botocore_is_not_imported_for_keys_in_the_url_or_the_environment(tmp_path: Path) -> None:
    in_environment = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "s"}
    cases = [
        (in_environment, "s3://bucket?region=r"),
        (in_environment, "s3://bucket"),
        (in_environment, "s3://bucket?endpoint=http://host"),
        ({"AWS_PROFILE": "absent"}, "s3://bucket?region=r&access_key=A&secret_key=s"),
        ({}, "s3://bucket?endpoint=http://127.0.0.1:1"),
    ]
    code = f"""
import os, sys
from penstock.objectstore.errors import InvalidStoreConfig
from penstock.objectstore.url import open_store
for variables, url in {cases!r}:
    os.environ.update(variables)
    open_store(url)
    assert not {{"boto3", "botocore"}} & sys.modules.keys(), url
    for name in variables:
        del os.environ[name]
os.environ["AWS_PROFILE"] = "absent"
try:
    open_store("s3://bucket")
except InvalidStoreConfig:
    assert "botocore" in sys.modules
else:
    raise AssertionError("an unknown profile is accepted")
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
