"""Register, fence, unregister and remove brokers.

Only one incarnation of a node is registered at a time. A newer one replaces the older one, whose
WAL is then recovered. A fenced incarnation never returns: the broker registers again with a new
incarnation id.
"""

from collections.abc import Collection, Iterable
from heapq import nsmallest

import msgspec

from penstock.base.ids import Millis, NodeEpoch, NodeId, WalSequence, WalStoreId
from penstock.controller.api.messages import (
    BrokerRegistered,
    Progress,
    RegisterBroker,
    RemoveBroker,
    Status,
    UnregisterBroker,
)
from penstock.controller.managers.checks import check_node
from penstock.controller.managers.elections import ELECTIONS_PER_TRANSACTION_MAX, Elector
from penstock.controller.managers.features import check_supported
from penstock.controller.managers.result import Refused, Result
from penstock.controller.managers.wal_stores import features_of
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState
from penstock.controller.metadata.records import (
    NodeRecord,
    NodeRemoved,
    Record,
    WalEnded,
    WalPlaced,
    WalRecord,
    WalRemoved,
)
from penstock.controller.metadata.topics import NO_LEADER, PartitionMetadata, in_order
from penstock.stream.ports import IN_STORE, BrokerIncarnation

BROKERS_MAX = 1_000
HOST_CHARS_MAX = 255
LISTENERS_MAX = 16
FIRST_NODE_ID = NodeId(1)


def register_broker(image: MetadataImage, request: RegisterBroker) -> Result[BrokerRegistered]:
    """Register a broker. A new incarnation gets the next node epoch and an empty WAL. A repeated
    request of the same incarnation receives the same reply, without new records. A request that
    arrives after a later start of the node has registered is rejected (NODE_EPOCH_EXPIRED).
    """
    try:
        _check_registration(request)
        check_supported(image, request.features, is_without_wal_store=request.is_without_wal_store)
        wal_store = _wal_store(image, request)
        known = _known(image, request)
        if known is not None and known.incarnation_id == request.incarnation_id:
            check_node(image, BrokerIncarnation(known.node_id, known.node_epoch))
            return Result(
                value=BrokerRegistered(
                    node_id=known.node_id, node_epoch=known.node_epoch, cluster_id=image.cluster_id
                )
            )
        _check_newest(image, request)
        if known is None and len(image.nodes) >= BROKERS_MAX:
            raise Refused(
                Status.INVALID_REQUEST, f"{BROKERS_MAX} brokers are registered, the maximum"
            )
    except Refused as refused:
        return refused.result()
    node_id = (
        known.node_id
        if known is not None
        else request.node_id
        if request.node_id >= 0
        else _lowest_free(image)
    )
    epoch = image.next_node_epoch
    node = NodeRecord(
        node_id,
        epoch,
        request.incarnation_id,
        request.host,
        request.port,
        request.machine_host,
        request.rack,
        fenced=False,
        other_listeners=request.other_listeners,
        version=request.version,
        wal_delete_grace_ms=request.wal_delete_grace_ms,
        features=features_of(image, request),
    )
    records: list[Record] = [node, WalRecord(node_id, epoch, WalSequence(0))]
    if wal_store != IN_STORE:
        records.append(WalPlaced(node_id, epoch, wal_store))
    return Result(
        records,
        value=BrokerRegistered(node_id=node_id, node_epoch=epoch, cluster_id=image.cluster_id),
    )


def unregister_broker(
    image: MetadataImage, request: UnregisterBroker, now_ms: Millis, *, live: Collection[NodeId]
) -> Result[Progress]:
    """Elect other leaders for the broker's partitions (a limited number per call), then remove the
    broker and end its WAL. All streams of the broker must be closed.

    Closing a stream commits its data, so without an open stream everything in the WAL is committed.
    No recovery is needed, even if the committed slot of the WAL is lower.
    """
    me = BrokerIncarnation(request.node_id, request.node_epoch)
    wal = image.nodes.wal(me)
    if wal is not None and wal.ended and not image.nodes.is_alive(me):
        return Result(value=Progress(remaining=0))
    try:
        check_node(image, me)
        if open_count := len(image.streams.opened_by(me)):
            raise Refused(
                Status.STREAM_NOT_CLOSED,
                f"node {me.node_id} still has {open_count} streams open; close them first",
            )
        if wal is None or request.wal_end < wal.committed:
            raise Refused(
                Status.OFFSET_NOT_MATCHED,
                f"the WAL of {me} cannot end at slot {request.wal_end}, below what is committed",
            )
    except Refused as refused:
        return refused.result()
    led = image.topics.led_by(me)
    elector = Elector(image, live, without=me.node_id)
    partitions = [
        image.topics.partition(key)
        for key in nsmallest(ELECTIONS_PER_TRANSACTION_MAX, led, key=in_order)
    ]
    records: list[Record] = [
        elector.elect(partition, now_ms) for partition in partitions if partition is not None
    ]
    remaining = len(led) - len(partitions)
    if not remaining:
        records += [WalEnded(me.node_id, me.node_epoch, request.wal_end), NodeRemoved(me.node_id)]
    return Result(records, value=Progress(remaining=remaining))


def removable_wals(
    image: MetadataImage, writers: Iterable[BrokerIncarnation]
) -> list[BrokerIncarnation]:
    """Return the ended WALs that have no slots that are still registered as objects, in order."""
    used = image.objects.wals()
    wals = (image.nodes.wal(writer) for writer in set(writers) - used)
    return sorted(wal.writer for wal in wals if wal is not None and wal.ended)


def remove_wals(image: MetadataImage, writers: Iterable[BrokerIncarnation]) -> list[Record]:
    """Remove WALs after their slots and fences were deleted. WALs that are still needed or already
    removed are skipped.
    """
    return [
        WalRemoved(writer.node_id, writer.node_epoch) for writer in removable_wals(image, writers)
    ]


def remove_broker(image: MetadataImage, request: RemoveBroker) -> Result[None]:
    """Remove a dead broker that will not start again.

    Refuses with NODE_EPOCH_NOT_EXIST (no such broker) and NODE_IN_USE: it is not fenced, one of its
    WALs has not ended, a move in progress refers to it, or a partition without a leader has no
    other candidate. These checks ensure that no leader, open stream or slot needed by recovery is
    lost. Partitions keep the broker as a candidate, as after a graceful shutdown: any broker can
    lead, and if a broker registers with this id again, it is a candidate again. All slots that
    ranges refer to are registered as objects, which outlive the broker's registration.
    """
    try:
        node = image.nodes.get(request.node_id)
        if node is None:
            raise Refused(
                Status.NODE_EPOCH_NOT_EXIST,
                f"Broker ID {request.node_id} is not currently registered",
            )
        _check_gone(image, node)
    except Refused as refused:
        return refused.result()
    return Result([NodeRemoved(request.node_id)])


def _check_gone(image: MetadataImage, node: NodeState) -> None:
    node_id = node.node_id
    if not node.fenced:
        raise Refused(
            Status.NODE_IN_USE,
            f"broker {node_id} is alive: stop its process with SIGTERM, which unregisters it; a"
            " broker that was killed is fenced within seconds",
        )
    for wal in image.nodes.running_wals():
        if wal.writer.node_id == node_id:
            raise Refused(
                Status.NODE_IN_USE,
                f"the WAL of broker {node_id} epoch {wal.writer.node_epoch} is not recovered yet:"
                " a running broker recovers it within seconds unless slots are lost (see penstock"
                " wal repair); try again when penstock nodes no longer lists that WAL",
            )
    for key in sorted(image.topics.led_by(NO_LEADER), key=in_order):
        partition = image.topics.partition(key)
        topic = image.topics.by_id(key.topic_id)
        if partition is not None and topic is not None:
            _check_leaderless(image, f"{topic.name}-{key.partition}", partition, node_id)


def _check_leaderless(
    image: MetadataImage, name: str, partition: PartitionMetadata, node_id: NodeId
) -> None:
    """Check a partition without a leader: the broker must not take part in its move, and must not
    be its only registered candidate. Raises Refused.
    """
    move, targets = partition.move, partition.target_replicas
    if targets is not None:
        named = {*partition.replicas, *targets}
        if move is not None:
            named |= {move.source, move.target}
        if node_id in named:
            raise Refused(
                Status.NODE_IN_USE,
                f"broker {node_id} takes part in the move of {name}: wait until it ends, or cancel"
                " it with penstock reassign cancel",
            )
    elif node_id in partition.replicas and not any(
        other != node_id and image.nodes.get(other) is not None for other in partition.replicas
    ):
        raise Refused(
            Status.NODE_IN_USE,
            f"broker {node_id} is the only candidate of {name}, which waits for a leader: start"
            " another broker to lead it",
        )


def fence_brokers(image: MetadataImage, dead: Iterable[BrokerIncarnation]) -> list[Record]:
    """Fence the incarnations whose sessions have ended. Incarnations that are not alive in the
    image are skipped, so a newer incarnation is not affected.
    """
    records: list[Record] = []
    for node in dead:
        state = image.nodes.get(node.node_id)
        if state is not None and image.nodes.is_alive(node):
            records.append(msgspec.structs.replace(state, fenced=True))
    return records


def _known(image: MetadataImage, request: RegisterBroker) -> NodeState | None:
    if request.node_id >= 0:
        return image.nodes.get(request.node_id)
    return next(
        (node for node in image.nodes if node.incarnation_id == request.incarnation_id), None
    )


def _check_newest(image: MetadataImage, request: RegisterBroker) -> None:
    """Check that the node has not registered again since the start that sent this request.
    Otherwise, the request was delayed, and its process may no longer be running. Raises Refused.
    """
    if request.next_node_epoch is None:
        return
    epochs = (
        w.writer.node_epoch for w in image.nodes.wals() if w.writer.node_id == request.node_id
    )
    newest = max(epochs, default=NodeEpoch(-1))
    if newest >= request.next_node_epoch:
        raise Refused(
            Status.NODE_EPOCH_EXPIRED,
            f"node {request.node_id} has registered with epoch {newest} since this process started"
            " to register: this process must exit",
        )


def _wal_store(image: MetadataImage, request: RegisterBroker) -> WalStoreId:
    """Return the store in which the broker must open its WAL. Raises Refused unless the broker has
    found the identity of this store. Otherwise, it would write to another store, which recovery
    does not read. A broker that cannot reach the store starts in the cluster's own store, unless
    its URL is that of an ended store. While a WAL store is being drained, brokers do not write to
    it, but they still recover WALs and read ranges in it.
    """
    needed = image.nodes.needed_wal_store
    if request.is_without_wal_store and (
        needed is not None or not any(image.nodes.ended_wal_stores())
    ):
        raise Refused(
            Status.INVALID_FEATURE_LEVEL,
            "the WALs of this cluster are in a WAL store, and this broker is not configured with"
            " wal.store",
        )
    if needed is None:
        return IN_STORE
    if request.is_wal_store_down and request.wal_store_uuid is None:
        if request.wal_store_url in {store.url for store in image.nodes.ended_wal_stores()}:
            raise Refused(
                Status.INVALID_REQUEST,
                f"the WAL store at {request.wal_store_url} was abandoned or drained; the WALs of"
                f" this cluster are in WAL store {needed.store_id} at {needed.url}: set wal.store"
                " to it",
            )
        return IN_STORE
    if (request.wal_store_id, request.wal_store_uuid) != (needed.store_id, needed.uuid):
        found = (
            "has none"
            if request.wal_store_uuid is None
            else f"has store {request.wal_store_id} with UUID {request.wal_store_uuid}"
        )
        raise Refused(
            Status.INVALID_REQUEST,
            f"the WALs of this cluster are in WAL store {needed.store_id} at {needed.url} with"
            f" UUID {needed.uuid}; this broker {found}: configure and mount the same store",
        )
    return IN_STORE if image.nodes.current_wal_store is None else needed.store_id


def _lowest_free(image: MetadataImage) -> NodeId:
    node_id = FIRST_NODE_ID
    while image.nodes.get(node_id) is not None:
        node_id = NodeId(node_id + 1)
    return node_id


def _check_registration(request: RegisterBroker) -> None:
    if not -1 <= request.node_id < 1 << 31:
        raise Refused(
            Status.INVALID_REQUEST,
            f"node id {request.node_id} is not allowed: 0 to 2147483647, or -1 for the lowest free",
        )
    if len(request.other_listeners) >= LISTENERS_MAX:
        raise Refused(
            Status.INVALID_REQUEST, f"a broker may have at most {LISTENERS_MAX} listeners"
        )
    for port in (request.port, *(listener.port for listener in request.other_listeners)):
        if not 1 <= port <= 65_535:
            raise Refused(Status.INVALID_REQUEST, f"port {port} is not allowed: 1 to 65535")
    names = [
        len(text) for listener in request.other_listeners for text in (listener.name, listener.host)
    ]
    if (
        max(
            *names,
            len(request.host),
            len(request.machine_host),
            len(request.rack or ""),
            len(request.version),
        )
        > HOST_CHARS_MAX
    ):
        raise Refused(
            Status.INVALID_REQUEST,
            f"host, rack and version may have at most {HOST_CHARS_MAX} characters",
        )
