"""Extract views for commands from a metadata image.

Invariant: pure; the result does not refer to the image. Field names are keys of `--json` output,
which scripts rely on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.base.ids import NodeId
from penstock.controller.api.load_messages import BrokerLoad, BrokerSession, Load, StoreRequests
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState
from penstock.controller.metadata.streams import StreamState
from penstock.stream.ports import BrokerIncarnation, ObjectRole


@dataclass(frozen=True, slots=True)
class RangeView:
    """One range of a stream in one object."""

    start_offset: int
    end_offset: int
    record_count: int
    size_bytes: int
    object_id: int
    role: str
    key: str


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream. phase: "open", "closed" or "new". node_id, node_epoch: its current or last
    owner.
    """

    stream_id: int
    partition: int
    kind: str
    phase: str
    epoch: int
    node_id: int
    node_epoch: int
    start_offset: int
    end_offset: int
    size_bytes: int
    ranges: list[RangeView]


@dataclass(frozen=True, slots=True)
class NodeView:
    """One broker. session: None if it has none or there is no active controller. note: the reason
    why the balancer excludes it. bytes_*_s, requests_s, append_*_ms, store: its last report; None
    without a report, and append_*_ms also without appends. version: empty if the broker has never
    reported one.
    """

    node_id: int
    node_epoch: int
    fenced: bool
    session: BrokerSession | None
    address: str
    rack: str | None
    leads: int
    open_streams: int
    bytes_in_s: int | None
    bytes_out_s: int | None
    requests_s: int | None
    append_p50_ms: float | None
    append_p99_ms: float | None
    loop_lag_ms: float | None
    store: StoreRequests | None
    version: str
    note: str

    def append_latencies(self) -> str:
        """Return the median and the 99th percentile, as displayed in tables."""
        if self.append_p50_ms is None or self.append_p99_ms is None:
            return "-"
        return f"{self.append_p50_ms:,.0f} / {self.append_p99_ms:,.0f}"


@dataclass(frozen=True, slots=True)
class WalView:
    """One open WAL. recoverer: "node/epoch" of the broker assigned to recover it, or "-".
    wal_store: the WAL store that contains it; 0: the cluster's own store.
    """

    node_id: int
    node_epoch: int
    committed: int
    is_alive: bool
    recoverer: str
    wal_store: int


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    controller: str
    metadata_offset: int
    topics: int
    streams: int
    objects: int
    nodes: list[NodeView]
    wals: list[WalView]


def view_streams(image: MetadataImage, topic_name: str) -> list[StreamView] | None:
    """Return the topic's streams by partition, or None if it does not exist. A frozen topic has a
    name such as `orders@nightly`.
    """
    topic = image.topics.by_name(topic_name) or image.frozen_topics.by_full_name(topic_name)
    if topic is None:
        return None
    states = [state for state in image.streams if state.topic_id == topic.topic_id]
    return [
        view_stream(image, state)
        for state in sorted(states, key=lambda state: (state.partition, state.stream_id))
    ]


def view_cluster(
    image: MetadataImage, controller: str, loads: Mapping[NodeId, BrokerLoad]
) -> ClusterView:
    """Return nodes and WALs. loads: the reported loads, which may lack some brokers."""
    nodes = [
        _node(image, node, loads.get(node.node_id))
        for node in sorted(image.nodes, key=lambda node: node.node_id)
    ]
    wals = [
        WalView(
            wal.writer.node_id,
            wal.writer.node_epoch,
            wal.committed,
            image.nodes.is_alive(wal.writer),
            f"{wal.recoverer.node_id}/{wal.recoverer.node_epoch}"
            if wal.recoverer.node_id >= 0
            else "-",
            wal.store_id,
        )
        for wal in image.nodes.running_wals()
    ]
    return ClusterView(
        image.cluster_id,
        controller,
        image.end_offset,
        len(image.topics),
        len(image.streams),
        len(image.objects),
        nodes,
        wals,
    )


def _node(image: MetadataImage, node: NodeState, reported: BrokerLoad | None) -> NodeView:
    identity = BrokerIncarnation(node.node_id, node.node_epoch)
    load = reported or BrokerLoad(node_id=node.node_id, load=Load(0, 0, 0), leaders=0)
    return NodeView(
        node_id=node.node_id,
        node_epoch=node.node_epoch,
        fenced=node.fenced,
        session=load.session,
        address=f"{node.host or node.machine_host}:{node.port}",
        rack=node.rack,
        leads=image.topics.led_count(identity),
        open_streams=len(image.streams.opened_by(identity)),
        bytes_in_s=None if reported is None else load.load.bytes_in,
        bytes_out_s=None if reported is None else load.load.bytes_out,
        requests_s=None if reported is None else load.load.requests,
        append_p50_ms=load.append_p50_ms,
        append_p99_ms=load.append_p99_ms,
        loop_lag_ms=load.loop_lag_ms,
        store=load.store,
        version=node.version,
        note=load.note,
    )


def view_stream(image: MetadataImage, state: StreamState) -> StreamView:
    """Return one stream with its ranges in offset order."""
    ranges: list[RangeView] = []
    for entry in state.entries:
        stored = image.objects.get(entry.object_id)
        ranges.append(
            RangeView(
                entry.start_offset,
                entry.end_offset,
                entry.record_count,
                entry.size_bytes,
                entry.object_id,
                ObjectRole(stored.role).name.lower() if stored else "unknown",
                stored.key if stored else "",
            )
        )
    return StreamView(
        stream_id=state.stream_id,
        partition=state.partition,
        kind=state.kind,
        phase="open" if state.opened else "new" if state.epoch < 0 else "closed",
        epoch=state.epoch,
        node_id=state.node_id,
        node_epoch=state.node_epoch,
        start_offset=state.start_offset,
        end_offset=state.end_offset,
        size_bytes=sum(entry.size_bytes for entry in state.entries),
        ranges=ranges,
    )
