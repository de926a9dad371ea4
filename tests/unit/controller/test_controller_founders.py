"""A founding controller that is later started with `join` keeps its identity: it does not found a
cluster of its own, even if it never reached the other founders.
"""

from pathlib import Path

from penstock.controller.config import ControllerConfig
from penstock.controller.main import ControllerServer
from penstock.objectstore.memory import MemoryStore
from tests.support.waiting import until

PEERS = ("0@127.0.0.1:1", "1@127.0.0.1:2", "2@127.0.0.1:3")


async def test_a_founder_that_never_reached_the_others_remembers_them(tmp_path: Path) -> None:
    store = MemoryStore()
    founder = ControllerServer(
        ControllerConfig(data_dir=tmp_path, cluster_id="c", peers=PEERS), store
    )
    await founder.start()
    await founder.stop()
    later = ControllerServer(
        ControllerConfig(data_dir=tmp_path, cluster_id="c", join=("127.0.0.1:2", "127.0.0.1:3")),
        store,
    )
    await later.start()
    assert later.quorum is not None
    assert later.quorum.members.voters == (0, 1, 2)
    assert not later.is_leading
    assert later.why_not_following(), "it is not ready either"
    await later.stop()


async def test_a_single_founder_becomes_leader_again_despite_join(tmp_path: Path) -> None:
    store = MemoryStore()
    first = ControllerServer(ControllerConfig(data_dir=tmp_path, cluster_id="c"), store)
    await first.start()
    await first.stop()
    again = ControllerServer(
        ControllerConfig(data_dir=tmp_path, cluster_id="c", join=("127.0.0.1:2",)), store
    )
    await again.start()
    await until(lambda: again.is_leading)
    await again.stop()
