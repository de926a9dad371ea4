"""Checks that several requests share. Each raises `Refused` if it fails."""

from penstock.base.ids import StreamEpoch, StreamId
from penstock.controller.api.messages import Status
from penstock.controller.managers.result import Refused
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import NodeState
from penstock.controller.metadata.streams import StreamState
from penstock.stream.ports import BrokerIncarnation


def check_node(image: MetadataImage, node: BrokerIncarnation) -> NodeState:
    """Check that this incarnation may act as a broker: it must be registered, not replaced by a
    newer incarnation, and not fenced.
    """
    state = image.nodes.get(node.node_id)
    if state is None or state.node_epoch < node.node_epoch:
        raise Refused(
            Status.NODE_EPOCH_NOT_EXIST,
            f"node {node.node_id} is not registered with epoch {node.node_epoch}: register first",
        )
    if state.node_epoch > node.node_epoch:
        detail = (
            f"node {node.node_id} has started again since epoch {node.node_epoch} (now"
            f" {state.node_epoch}): this process must exit"
        )
        raise Refused(Status.NODE_EPOCH_EXPIRED, detail)
    if state.fenced:
        detail = (
            f"node {node.node_id} epoch {node.node_epoch} lost its session and is fenced: register"
            " again with a new incarnation id"
        )
        raise Refused(Status.NODE_FENCED, detail)
    return state


def check_stream(image: MetadataImage, stream_id: StreamId) -> StreamState:
    stream = image.streams.get(stream_id)
    if stream is None:
        raise Refused(
            Status.STREAM_NOT_EXIST, f"stream {stream_id} does not exist; its topic was deleted"
        )
    return stream


def check_owner(stream: StreamState, node: BrokerIncarnation) -> None:
    """Check that this incarnation owns the open stream."""
    if not stream.opened:
        raise Refused(
            Status.STREAM_NOT_OPENED,
            f"stream {stream.stream_id} is closed at offset {stream.end_offset}",
        )
    if stream.owner != node:
        owner = f"node {stream.node_id} epoch {stream.node_epoch}"
        raise Refused(
            Status.STREAM_FENCED,
            f"stream {stream.stream_id} is open for {owner}, stream epoch {stream.epoch}",
        )


def check_epoch(stream: StreamState, epoch: StreamEpoch) -> None:
    if stream.epoch > epoch:
        raise Refused(
            Status.STREAM_FENCED,
            f"stream {stream.stream_id} is at epoch {stream.epoch}, the request at {epoch}",
        )
    if stream.epoch < epoch:
        raise Refused(
            Status.STREAM_NOT_OPENED,
            f"stream {stream.stream_id} was not opened with epoch {epoch}, it is at {stream.epoch}",
        )


def check_count(what: str, count: int, maximum: int) -> None:
    if count > maximum:
        raise Refused(
            Status.INVALID_REQUEST,
            f"{count} {what} in one request; at most {maximum} are allowed: split it",
        )
