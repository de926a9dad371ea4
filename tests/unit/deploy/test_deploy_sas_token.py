"""Controllers and SAS tokens that outlive fences."""

import pytest

from penstock.deploy.errors import UsageError
from penstock.deploy.node.process import check_sas_token

DAY_MS = 86_400_000
NOW_S = 1_798_761_600  # 2027-01-01
STORE = "az://acct/box"
LONG, SHORT = "se=2027-01-09T00%3A00%3A00Z&sig=SECRET", "se=2027-01-07T00%3A00%3A00Z&sig=SECRET"


@pytest.mark.parametrize(
    ("store", "environment", "retention_ms"),
    [
        (STORE, {"AZURE_STORAGE_SAS_TOKEN": LONG}, 7 * DAY_MS),
        (STORE, {"AZURE_STORAGE_SAS_TOKEN": SHORT}, DAY_MS),
        (f"{STORE}?sas_token={LONG.replace('%', '%25').replace('&', '%26')}", {}, 7 * DAY_MS),
    ],
)
def test_a_token_that_outlives_fences_is_refused(
    store: str, environment: dict[str, str], retention_ms: int
) -> None:
    with pytest.raises(UsageError, match=r"wal\.fence\.retention\.ms") as caught:
        check_sas_token(store, retention_ms, environment, NOW_S)
    assert "SECRET" not in str(caught.value)


def test_other_credentials_pass() -> None:
    check_sas_token(STORE, 7 * DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": SHORT}, NOW_S)
    check_sas_token(STORE, 10 * DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": LONG}, NOW_S)
    check_sas_token(f"{STORE}?account_key=a2V5", DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": LONG}, NOW_S)
    for other in ("memory:", "file:x", "s3://bucket", "gs://bucket"):
        check_sas_token(other, DAY_MS, {"AZURE_STORAGE_SAS_TOKEN": LONG}, NOW_S)
