"""Client for the controller, with one method per message."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast
from uuid import uuid4

import msgspec
import structlog

from penstock.base.backoff import Backoff
from penstock.controller.api import load_messages as lm
from penstock.controller.api import messages as m
from penstock.controller.api import quota_messages as qm
from penstock.controller.api import rewrite_messages as rm
from penstock.controller.api import scram_messages as sm
from penstock.controller.api import token_messages as tm
from penstock.controller.api.errors import refusal
from penstock.controller.api.tls import PemFiles, TlsFiles
from penstock.controller.api.tls_errors import explain
from penstock.controller.api.transport import (
    EPOCH_KEY,
    REQUEST_ID_KEY,
    Channel,
    RpcFailed,
    StatusCode,
    UnaryCallable,
)
from penstock.controller.metadata.records import MetadataOffset

DEFAULT_TIMEOUT_S = 30.0
ATTEMPT_TIMEOUT_S = 5.0
"""Timeout of one attempt. After it, the client retries at this controller or its successor."""

BACKOFF_FIRST_MS = 20
BACKOFF_MAX_MS = 500

PROBLEM_INTERVAL_S = 60.0
"""Minimum interval between two reports of the same problem."""

LOCKED_OUT_S = 1.0
"""Pause after every controller has rejected the connection, because servers log each failed
handshake.
"""

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_PERMANENT = (
    StatusCode.INVALID_ARGUMENT,
    StatusCode.UNIMPLEMENTED,
    StatusCode.RESOURCE_EXHAUSTED,
    StatusCode.INTERNAL,
)


class ImageReached(Protocol):
    """The method of a follower that is needed for read-your-writes."""

    async def reached(self, offset: MetadataOffset, deadline: float) -> None: ...


def log_problem(problem: str) -> None:
    """Log that a controller cannot be used. Nodes pass this function to their clients."""
    _log.warning("controller_refused_connection", reason=problem, next="retrying")


class ControllerClient:
    """Calls the active controller. Any number of tasks on one event loop may use it.

    A call ends within its deadline: it returns a value, or raises the `RequestRefused` for its
    status or `TimeoutError`. Retries have the same request id, so that the controller repeats a
    lost reply instead of doing the work twice. Each attempt contains the newest known controller
    epoch, and only the controller with that epoch executes it. With a bound follower, a call
    returns after the local image includes its change (read your writes).

    addresses: host:port of controllers. The client finds the active controller through redirects,
    and new controllers through `learn`. tls: None for plaintext. on_problem: called when a
    controller cannot be used because of TLS or the certificate, at most once a minute for the same
    reason.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        rng: random.Random | None = None,
        tls: TlsFiles | None = None,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        assert addresses, "at least one controller address"
        self.tls = tls
        self.problem = ""
        """Error of the last connection if it failed because of TLS or the certificate; otherwise
        empty.
        """
        self._consecutive_failures = 0
        self._on_problem = on_problem
        self._reported_problem: dict[str, float] = {}
        self._pem: PemFiles | None = None
        """The TLS files used by the channels."""
        self._closing: set[asyncio.Task[None]] = set()
        self._configured = tuple(addresses)
        self._addresses = list(addresses)
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._active = self._addresses[0]
        self._channels: dict[str, Channel] = {}
        self._methods: dict[tuple[str, str], UnaryCallable] = {}
        self._decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}
        self._follower: ImageReached | None = None
        self._epoch = 0

    @property
    def address(self) -> str:
        """The controller that is tried first."""
        return self._active

    @property
    def addresses(self) -> tuple[str, ...]:
        """All known controllers: those reported by the quorum, followed by the configured ones."""
        return tuple(self._addresses)

    def learn(self, addresses: Sequence[str]) -> None:
        """Use the addresses reported by the quorum. The configured ones are tried last."""
        if addresses:
            self._addresses = list(dict.fromkeys((*addresses, *self._configured)))

    def bind(self, follower: ImageReached) -> None:
        """Make every call wait until the image of this follower includes its effect."""
        self._follower = follower

    async def close(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        self._methods.clear()
        for channel in channels:
            await channel.close()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def worked(self) -> None:
        """Record that a controller responded."""
        self.problem = ""
        self._consecutive_failures = 0
        self._reported_problem.clear()

    @property
    def is_locked_out(self) -> bool:
        """Whether all controllers have rejected the connection, each at its last attempt."""
        return self._consecutive_failures >= len(self._addresses)

    def failed(self, address: str, error: RpcFailed) -> None:
        """Record that a controller did not respond. Report this if TLS or the certificate is the
        reason.
        """
        detail = error.details() or ""
        if error.code() is StatusCode.UNAUTHENTICATED:
            why = f"it refuses this certificate: {detail}"
        elif error.code() is StatusCode.UNAVAILABLE:
            why = explain(detail, has_tls=self.tls is not None)
            if why and self.tls is not None and (own := self.tls.expiry()):
                why += f"; this side's {own}"
        else:
            return
        self.problem = f"{address}: {why}" if why else ""
        self._consecutive_failures = self._consecutive_failures + 1 if why else 0
        now = asyncio.get_running_loop().time()
        reported_at = self._reported_problem.get(self.problem, float("-inf"))
        if why and now - reported_at >= PROBLEM_INTERVAL_S:
            self._reported_problem[self.problem] = now
            self._on_problem(self.problem)

    def redirect(self, leader: str) -> None:
        """Try `leader` first from now on, or the next address if it is empty."""
        if leader:
            self._active = leader
            return
        at = self._addresses.index(self._active) if self._active in self._addresses else -1
        self._active = self._addresses[(at + 1) % len(self._addresses)]

    async def register_broker(
        self, request: m.RegisterBroker, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.BrokerRegistered:
        """Register the broker. The controller rejects the request if it arrives after a later start
        of the node has registered.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        confirmed = await self._exchange(m.ConfirmMetadata(), m.MetadataConfirmed, timeout_s)
        if confirmed is not None:
            request = msgspec.structs.replace(request, next_node_epoch=confirmed.next_node_epoch)
        return await self._call(request, m.BrokerRegistered, deadline - now())

    async def unregister_broker(
        self, request: m.UnregisterBroker, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Unregister the broker. Does not wait for the local image, because the session and its
        stream end with the registration.
        """
        await self._until_done(request, timeout_s, read_own_writes=False)

    async def remove_broker(
        self, request: m.RemoveBroker, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def abandon_wal_store(
        self, request: m.AbandonWalStore, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def drain_wal_store(
        self, request: m.DrainWalStore, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.Progress:
        return await self._call(request, m.Progress, timeout_s)

    async def open_streams(
        self, request: m.OpenStreams, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.StreamsOpened:
        return await self._call(request, m.StreamsOpened, timeout_s)

    async def trim_stream(
        self, request: m.TrimStream, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def prepare_objects(
        self, request: m.PrepareObjects, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ObjectsPrepared:
        return await self._call(request, m.ObjectsPrepared, timeout_s)

    async def commit(self, request: m.Commit, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def commit_recovered(
        self, request: m.CommitRecovered, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._until_done(request, timeout_s)

    async def create_topics(
        self, request: m.CreateTopics, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.TopicsCreated:
        return await self._call(request, m.TopicsCreated, timeout_s)

    async def delete_topics(
        self, request: m.DeleteTopics, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def create_partitions(
        self, request: m.CreatePartitions, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def alter_reassignments(
        self, request: m.AlterReassignments, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def elect_preferred(
        self, request: m.ElectPreferred, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def drain_broker(
        self, request: m.DrainBroker, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.Progress:
        return await self._call(request, m.Progress, timeout_s)

    async def report_moves(
        self, request: m.ReportMoves, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def trace_move(
        self, request: m.TraceMove, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.MoveTraces:
        return await self._call(request, m.MoveTraces, timeout_s)

    async def report_load(
        self, request: lm.ReportLoad, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> lm.LoadReported:
        return await self._call(request, lm.LoadReported, timeout_s)

    async def propose_moves(
        self, request: lm.ProposeMoves, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> lm.MovesProposed:
        return await self._call(request, lm.MovesProposed, timeout_s)

    async def move_leaders(
        self, request: lm.MoveLeaders, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def alter_configs(
        self, request: m.AlterConfigs, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def update_features(
        self, request: m.UpdateFeatures, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def create_acls(
        self, request: m.CreateAcls, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def delete_acls(
        self, request: m.DeleteAcls, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.AclsDeleted:
        return await self._call(request, m.AclsDeleted, timeout_s)

    async def alter_scram_credentials(
        self, request: sm.AlterScramCredentials, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> sm.ScramAltered:
        return await self._call(request, sm.ScramAltered, timeout_s)

    async def create_delegation_token(
        self, request: tm.CreateDelegationToken, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tm.DelegationTokenReply:
        return await self._call(request, tm.DelegationTokenReply, timeout_s)

    async def renew_delegation_token(
        self, request: tm.RenewDelegationToken, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tm.DelegationTokenReply:
        return await self._call(request, tm.DelegationTokenReply, timeout_s)

    async def expire_delegation_token(
        self, request: tm.ExpireDelegationToken, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> tm.DelegationTokenReply:
        return await self._call(request, tm.DelegationTokenReply, timeout_s)

    async def alter_quotas(
        self, request: qm.AlterQuotas, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> qm.QuotasAltered:
        return await self._call(request, qm.QuotasAltered, timeout_s)

    async def allocate_producer_ids(
        self, request: m.AllocateProducerIds, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ProducerIdBlock:
        return await self._call(request, m.ProducerIdBlock, timeout_s)

    async def put_key_value(
        self, request: m.PutKeyValue, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.KeyValue:
        return await self._call(request, m.KeyValue, timeout_s)

    async def get_key_value(
        self, request: m.GetKeyValue, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.KeyValue:
        return await self._call(request, m.KeyValue, timeout_s)

    async def delete_key_value(
        self, request: m.DeleteKeyValue, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.KeyValue:
        return await self._call(request, m.KeyValue, timeout_s)

    async def confirm_metadata(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until the local image includes everything that was committed before this call."""
        await self._exchange(m.ConfirmMetadata(), m.MetadataConfirmed, timeout_s)

    async def prepare_rewrite(
        self, request: rm.PrepareRewrite, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ObjectsPrepared:
        return await self._call(request, m.ObjectsPrepared, timeout_s)

    async def commit_rewrite(
        self, request: rm.CommitRewrite, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> m.ItemResults:
        return await self._call(request, m.ItemResults, timeout_s)

    async def describe(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> m.ControllerStatus:
        return await self._call(m.DescribeController(), m.ControllerStatus, timeout_s)

    async def describe_quorum(self, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> m.QuorumStatus:
        return await self._call(m.DescribeQuorum(), m.QuorumStatus, timeout_s)

    async def add_learner(
        self, request: m.AddLearner, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def add_voter(self, request: m.AddVoter, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def remove_controller(
        self, request: m.RemoveController, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def transfer_leadership(
        self, request: m.TransferLeadership, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        await self._exchange(request, m.ItemResult, timeout_s)

    async def _call(self, request: m.Message, value_type: type[_T], timeout_s: float) -> _T:
        value = await self._exchange(request, value_type, timeout_s)
        assert value is not None, (
            f"the controller responded to {type(request).__name__} without a value"
        )
        return value

    async def _until_done(
        self, request: m.Message, timeout_s: float, *, read_own_writes: bool = True
    ) -> None:
        """Repeat the request until nothing remains, because the controller splits the work into
        transactions.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        remaining = 1
        while remaining:
            progress = await self._exchange(
                request, m.Progress, deadline - now(), read_own_writes=read_own_writes
            )
            remaining = 0 if progress is None else progress.remaining

    async def _exchange(
        self,
        request: m.Message,
        value_type: type[_T],
        timeout_s: float,
        *,
        read_own_writes: bool = True,
    ) -> _T | None:
        """Retry the request until it has a final reply, then wait for the local image."""
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        method = type(request).__name__
        body = _encode(request)
        request_id = uuid4().hex
        backoff = Backoff(BACKOFF_FIRST_MS, BACKOFF_MAX_MS, self._rng)
        last = "no attempt"
        while (left_s := deadline - now()) > 0:
            reply = await self._attempt(
                method, body, request_id, value_type, min(left_s, ATTEMPT_TIMEOUT_S)
            )
            if not isinstance(reply, str):
                if reply.status is m.Status.OK:
                    if read_own_writes and self._follower is not None and reply.offset > 0:
                        await self._follower.reached(reply.offset, deadline)
                    return reply.value
                if reply.status is m.Status.STALE_CONTROLLER_EPOCH:
                    continue
                if reply.status is m.Status.NOT_LEADER:
                    self.redirect(reply.detail)
                elif reply.status is not m.Status.CONTROLLER_BUSY:
                    raise refusal(reply.status, reply.detail, reply.offset)
                last = f"{reply.status.name} {reply.detail}".rstrip()
            else:
                last = reply
            pause_s = LOCKED_OUT_S if self.is_locked_out else backoff.next_s()
            await asyncio.sleep(max(0.0, min(pause_s, deadline - now())))
        raise TimeoutError(
            f"{method} got no response from the controller within {timeout_s:.1f} s; last: {last}"
        )

    async def _attempt(
        self, method: str, body: bytes, request_id: str, value_type: type[_T], timeout_s: float
    ) -> "m.Reply[_T] | str":
        """Return the reply, or the reason why there is none. In that case, the outcome is unknown,
        and the next controller is tried.
        """
        address = self._active
        try:
            data = await self._method(address, method)(
                body,
                timeout=timeout_s,
                metadata=((REQUEST_ID_KEY, request_id), (EPOCH_KEY, str(self._epoch))),
            )
        except RpcFailed as error:
            if error.code() in _PERMANENT:
                raise refusal(
                    m.Status.INVALID_REQUEST, f"{error.code().name}: {error.details()}"
                ) from error
            if self._active == address:
                self.redirect("")
            self.failed(address, error)
            return self.problem or f"{address}: {error.code().name}: {error.details()}"
        self.worked()
        reply: m.Reply[_T] = self._decoder(value_type).decode(data)
        if reply.offset > 0 or reply.status is m.Status.STALE_CONTROLLER_EPOCH:
            if reply.controller_epoch < self._epoch:
                self.redirect("")
                return (
                    f"{address}: it leads epoch {reply.controller_epoch}, {self._epoch} has begun"
                )
            self._epoch = reply.controller_epoch
        return reply

    def _method(self, address: str, method: str) -> UnaryCallable:
        self._drop_outdated_channels()
        known = self._methods.get((address, method))
        if known is None:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = Channel(address, self.tls)
            known = self._methods[address, method] = channel.unary(method)
        return known

    def _drop_outdated_channels(self) -> None:
        """Replace the channels after the TLS files have changed, because a channel reconnects with
        the files that it was created with. Calls in progress complete on the old channels.
        """
        if self.tls is None or (pem := self.tls.current()) is self._pem:
            return
        self._pem = pem
        for channel in self._channels.values():
            closing = asyncio.get_running_loop().create_task(channel.close(ATTEMPT_TIMEOUT_S))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._channels.clear()
        self._methods.clear()

    def _decoder(self, value_type: type[_T]) -> msgspec.msgpack.Decoder[Any]:
        known = self._decoders.get(value_type)
        if known is None:
            reply_type = cast("Any", m.Reply)[value_type]
            known = self._decoders[value_type] = msgspec.msgpack.Decoder(reply_type)
        return known
