"""The error codes match those of Kafka, and every error is mapped to one."""

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from penstock.base.errors import StreamError
from penstock.base.ids import Offset, StreamId
from penstock.broker.errors import KAFKA_ERRORS, ErrorCode, code_of, code_of_status, kafka_error
from penstock.controller.api.errors import refusal
from penstock.controller.api.messages import Status
from penstock.objectstore.errors import ObjectNotFound
from penstock.protocol.errors import Truncated
from penstock.stream.errors import OffsetOutOfRange, WalFull


def test_the_error_table_matches_kio() -> None:
    ours = {code.name.lower(): (int(code), code.retriable) for code in ErrorCode}
    assert ours == {code.name: (int(code), code.retriable) for code in KioErrorCode}
    assert all(code.message.endswith(".") for code in ErrorCode)


def test_each_error_code_has_its_own_exception_class() -> None:
    error = kafka_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert type(error) is KAFKA_ERRORS[ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert type(error).__name__ == "NotLeaderOrFollower"
    assert error.retriable
    assert str(error) == ErrorCode.NOT_LEADER_OR_FOLLOWER.message
    assert (
        str(kafka_error(ErrorCode.INVALID_CONFIG, "retention.ms: want an integer"))
        == "retention.ms: want an integer"
    )
    with pytest.raises(KeyError):
        kafka_error(ErrorCode.NONE)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (kafka_error(ErrorCode.INVALID_RECORD), ErrorCode.INVALID_RECORD),
        (Truncated(4, 0), ErrorCode.INVALID_REQUEST),
        (TimeoutError(), ErrorCode.REQUEST_TIMED_OUT),
        (
            OffsetOutOfRange(StreamId(1), Offset(5), Offset(0), Offset(3)),
            ErrorCode.OFFSET_OUT_OF_RANGE,
        ),
        (WalFull(1, 1), ErrorCode.REQUEST_TIMED_OUT),
        (StreamError("gone"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ObjectNotFound("k"), ErrorCode.KAFKA_STORAGE_ERROR),
        (refusal(Status.TOPIC_EXISTS, "t"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (ValueError("bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_exceptions_are_mapped_to_error_codes(error: Exception, code: ErrorCode) -> None:
    assert code_of(error) is code


def test_every_controller_status_is_mapped_to_an_error_code() -> None:
    assert code_of_status(Status.OK) is ErrorCode.NONE
    assert all(
        code_of_status(status) is not ErrorCode.NONE for status in Status if status is not Status.OK
    )
