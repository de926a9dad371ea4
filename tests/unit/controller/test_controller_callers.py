"""Authorization of controller methods by roles and ids in certificate names."""

import pytest

from penstock.base.ids import NodeEpoch, NodeId
from penstock.controller.active.audit import CHANGES
from penstock.controller.active.dispatch import REQUESTS
from penstock.controller.api import load_messages as lm
from penstock.controller.api import messages as m
from penstock.controller.api.callers import (
    ACTS_AS,
    EXCHANGE,
    FOLLOW,
    METHODS,
    Caller,
    CallerRole,
    NameRules,
    id_refusal,
    identify,
    method_refusal,
    request_refusal,
)
from tests.support.controller_cluster import new_registration

RULES = NameRules(
    ("penstock-broker", "penstock-broker-{id}", "penstock://c/broker/{id}"),
    ("penstock-controller", "penstock-controller-{id}"),
    ("penstock-admin",),
)

BROKER, CONTROLLER, ADMIN = CallerRole.BROKER, CallerRole.CONTROLLER, CallerRole.ADMIN


def caller(*names: str) -> Caller:
    return identify(names, RULES)


def allowed(*names: str) -> set[str]:
    """Return the methods that a client with a certificate with these names may call."""
    who = caller(*names)
    return {method for method in METHODS if not method_refusal(who, method)}


def test_each_request_of_an_incarnation_is_checked_for_its_own_node() -> None:
    with_epoch = {
        kind.__name__
        for kind in REQUESTS
        if {"node_id", "node_epoch"} <= set(kind.__struct_fields__)
    }
    assert with_epoch <= set(ACTS_AS)
    assert {"RegisterBroker", "ReportLoad", "ReportMoves", "AddLearner"} <= set(ACTS_AS)


def test_all_changes_by_admins_are_in_the_audit_log() -> None:
    changes_nothing_for_readers = {
        FOLLOW,
        "DescribeController",
        "DescribeQuorum",
        "GetKeyValue",
        "ProposeMoves",
        "TraceMove",
        "PrepareRewrite",
        "CommitRewrite",
    }
    for_clients_alone = {f"{verb}DelegationToken" for verb in ("Create", "Renew", "Expire")}
    logged = {kind.__name__ for kind in CHANGES} - for_clients_alone
    assert logged == allowed("penstock-admin") - changes_nothing_for_readers


def test_controllers_may_only_exchange_messages_join_and_describe() -> None:
    expected = {EXCHANGE, "AddLearner", "DescribeController", "DescribeQuorum"}
    assert allowed("penstock-controller") == expected
    assert allowed("penstock-controller-2") == expected


def test_brokers_may_neither_vote_nor_change_the_quorum() -> None:
    found = allowed("penstock-broker")
    assert {"RegisterBroker", "Commit", "OpenStreams", "CreateTopics", FOLLOW} <= found
    assert found.isdisjoint({EXCHANGE, "AddLearner", "AddVoter", "RemoveController", "PutKeyValue"})


def test_admins_may_administer_but_not_act_as_a_node() -> None:
    found = allowed("penstock-admin")
    assert {"AddVoter", "MoveLeaders", "DescribeQuorum", "CommitRewrite", FOLLOW} <= found
    assert found.isdisjoint({"RegisterBroker", "Commit", "OpenStreams", EXCHANGE, "AddLearner"})
    assert "not of the role broker" in id_refusal(caller("penstock-admin"), BROKER, 1)


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("alice",),
        ("penstock-broker-x",),
        ("penstock-broker-",),
        ("xpenstock-broker",),
        ("penstock-broker-1.example",),
        ("penstock-brokers",),
        ("penstock-broker-１",),  # noqa: RUF001 - a digit of another script
        ("penstock-broker\n",),
    ],
)
def test_a_certificate_without_a_known_name_may_call_nothing(names: tuple[str, ...]) -> None:
    assert allowed(*names) == set()
    assert "controller.ssl.broker.names" in method_refusal(caller(*names), "RegisterBroker")


def test_a_certificate_with_an_id_is_valid_only_for_this_id() -> None:
    named = caller("penstock-broker-3")
    assert id_refusal(named, BROKER, 3) == ""
    assert "of broker 3, not of broker 4" in id_refusal(named, BROKER, 4)
    assert id_refusal(caller("penstock-broker"), BROKER, 4) == ""
    assert id_refusal(caller("penstock-broker", "penstock://c/broker/7"), BROKER, 7) == ""
    both = caller("penstock-broker", "penstock-broker-3")
    assert id_refusal(both, BROKER, 4), "the id counts though another name has none"


def test_requests_must_contain_the_id_of_their_sender() -> None:
    named = caller("penstock-broker-3")

    def opening(node_id: int) -> m.OpenStreams:
        return m.OpenStreams(node_id=NodeId(node_id), node_epoch=NodeEpoch(1), items=[])

    assert request_refusal(named, opening(3)) == ""
    assert request_refusal(named, opening(4))
    assert request_refusal(named, new_registration(3)) == ""
    assert request_refusal(named, new_registration(-1)), "an id that the controller chooses"
    assert request_refusal(named, m.RemoveBroker(node_id=NodeId(4))) == "", "of another node"
    assert request_refusal(
        caller("penstock-controller-1"), m.AddLearner(node_id=2, address="a:1", directory_id="d")
    )


def test_a_broker_may_drain_itself_and_an_admin_any_broker() -> None:
    request = m.DrainBroker(node_id=NodeId(4), node_epoch=NodeEpoch(1), partitions_max=1)
    assert request_refusal(caller("penstock-broker-3"), request)
    assert request_refusal(caller("penstock-broker-4"), request) == ""
    assert request_refusal(caller("penstock-admin"), request) == ""


def test_load_reports_must_contain_the_id_of_their_sender() -> None:
    assert ACTS_AS[lm.ReportLoad.__name__] is BROKER
    assert CONTROLLER in METHODS["AddLearner"]
    assert ADMIN not in METHODS[EXCHANGE]
