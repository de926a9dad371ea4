"""Exit codes of the broker process."""

import pytest

from penstock.broker import main
from penstock.broker.config import BrokerConfig
from penstock.broker.node import Broker
from penstock.controller.api.errors import NodeRefused
from penstock.controller.api.follower import FollowerFenced
from penstock.controller.api.messages import Status
from penstock.controller.metadata.records import MetadataOffset
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FollowerFenced("refused"), main.EXIT_FENCED),
        (NodeRefused(Status.NODE_FENCED, "fenced", MetadataOffset(0)), main.EXIT_FENCED),
        (TimeoutError("no controller"), main.EXIT_NOT_STARTED),
    ],
)
async def test_a_fenced_broker_exits_with_its_own_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    async def start(*_: object, **__: object) -> Broker:
        raise error

    monkeypatch.setattr(Broker, "start", start)
    config = BrokerConfig(node_id=1, controllers=("127.0.0.1:1",))
    found = await main.serve(config, "memory:", StreamConfig(), CompactionConfig())
    assert found == code
