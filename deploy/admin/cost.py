"""Estimate the cost of object store requests and storage.

Invariant: pure. Not included: requests of controllers (at most about 2 PUT/s for backup and
manifest), transfer to other regions and the internet, and objects that wait for deletion. Brokers
report the total requests to both stores, so requests have no price if the prices of the WAL store
differ.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.controller.api.load_messages import StoreRequests

HOUR_S: Final = 3_600
MONTH_HOURS: Final = 730
"""Hours per month, as in the AWS pricing calculator."""
_GB: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """USD per 1,000 requests, and per GB (10^9 bytes) and month. put: PUT and LIST. get: GET and
    HEAD. source: storage class and region of the price list. price_list: its name in PRICES; empty
    for user-defined prices, which apply to any store.
    """

    put_usd_per_1000: float = 0.005
    get_usd_per_1000: float = 0.0004
    storage_usd_per_gb_month: float = 0.023
    source: str = "S3 Standard in us-east-1"
    price_list: str = "s3"


PRICES: Final[Mapping[str, Prices]] = {
    "s3": Prices(),
    "gs": Prices(
        storage_usd_per_gb_month=0.020,
        source="Google Cloud Storage Standard in us-east1",
        price_list="gs",
    ),
    "az": Prices(
        storage_usd_per_gb_month=0.018,
        source="Azure Blob Storage Hot LRS in East US",
        price_list="az",
    ),
}
"""List prices of November 2026 by the scheme of the store URL: S3 Standard in us-east-1, Google's
Standard in us-east1, Azure's Hot tier with LRS in East US. Deletes are free.
https://aws.amazon.com/s3/pricing/, https://cloud.google.com/storage/pricing and
https://azure.microsoft.com/pricing/details/storage/blobs/.
"""


_EXPRESS: Final = re.compile(r"s3://[^/?#]+--x-s3(?:[/?#]|$)")


def prices_of(store_url: str) -> Prices:
    """Return the list prices of the cloud that hosts the store, or S3 prices for other stores."""
    scheme = store_url.partition(":")[0] or "s3"
    return PRICES.get(scheme, Prices(price_list=scheme))


def differently_priced(wal_store_urls: Iterable[str], prices: Prices) -> str:
    """Return the first WAL store that these prices do not apply to, or an empty string. S3 Express
    One Zone has different prices per request, and also a price per GB; directories have no prices.
    """
    for url in wal_store_urls if prices.price_list else ():
        if _EXPRESS.match(url) or url.partition(":")[0] != prices.price_list:
            return url
    return ""


@dataclass(frozen=True, slots=True)
class StoreCost:
    """Estimated cost. requests: of all brokers that report, or None. usd_month: at the current
    rate. unpriced: the WAL store whose requests make the total impossible to price, or an empty
    string.
    """

    requests: StoreRequests | None
    requests_usd_month: float | None
    storage_usd_month: float
    prices: Prices
    unpriced: str = ""

    @property
    def requests_per_hour(self) -> float | None:
        """Return the requests of all kinds, including free ones."""
        if self.requests is None:
            return None
        found = self.requests
        return (found.put_s + found.list_s + found.get_s + found.delete_s) * HOUR_S

    @property
    def requests_usd_hour(self) -> float | None:
        return None if self.requests_usd_month is None else self.requests_usd_month / MONTH_HOURS


def usd_month(requests: StoreRequests, prices: Prices) -> float:
    dear, cheap = requests.put_s + requests.list_s, requests.get_s
    usd_s = (dear * prices.put_usd_per_1000 + cheap * prices.get_usd_per_1000) / 1_000
    return usd_s * MONTH_HOURS * HOUR_S


def storage_usd_month(stored_bytes: int, prices: Prices) -> float:
    return stored_bytes / _GB * prices.storage_usd_per_gb_month


def get_usd(requests: int, prices: Prices) -> float:
    return requests * prices.get_usd_per_1000 / 1_000


def store_cost(
    brokers: Iterable[StoreRequests | None],
    stored_bytes: int,
    prices: Prices,
    wal_store_urls: Iterable[str] = (),
) -> StoreCost:
    known = [requests for requests in brokers if requests is not None]
    total = StoreRequests(*map(sum, zip(*known, strict=True))) if known else None
    storage = storage_usd_month(stored_bytes, prices)
    unpriced = differently_priced(wal_store_urls, prices)
    requests_usd = None if total is None or unpriced else usd_month(total, prices)
    return StoreCost(total, requests_usd, storage, prices, unpriced)
