"""Topic sizes in commands: an unknown size is not shown as zero."""

import pytest
from typer.testing import CliRunner

from penstock.deploy.admin.cost import Prices, storage_usd_month
from penstock.deploy.admin.topic_sizes import SizeView, total
from penstock.deploy.cli.app import app
from penstock.deploy.errors import UsageError

ONE = SizeView(1_000, 400, 2, 10, 0.5, 3, 0.25)
UNKNOWN = SizeView(None, None, None, None, None, None, None)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], SizeView(0, 0, 0, 0, 0, 0, 0)),
        ([ONE, ONE], SizeView(2_000, 800, 4, 20, 1.0, 6, 0.5)),
        (
            [ONE, SizeView(1, None, None, None, 0.25, None, None)],
            SizeView(1_001, None, None, None, 0.75, None, None),
        ),
        ([ONE, UNKNOWN], UNKNOWN),
    ],
)
def test_a_sum_with_an_unknown_part_is_unknown(sizes: list[SizeView], expected: SizeView) -> None:
    assert total(sizes) == expected


def test_storage_cost_is_proportional_to_bytes() -> None:
    assert storage_usd_month(2_000_000_000, Prices()) == pytest.approx(0.046)
    assert storage_usd_month(500, Prices(storage_usd_per_gb_month=1e9)) == pytest.approx(500)


def test_describe_without_a_topic_requires_the_size_option() -> None:
    result = CliRunner().invoke(app, ["topics", "describe"])
    assert isinstance(result.exception, UsageError)
