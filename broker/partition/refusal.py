"""The reason why a batch was not appended."""

from dataclasses import dataclass

from penstock.protocol.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a batch was not appended. `record_errors`: (index in the batch, message), for
    clients that use Produce v8 or later. `reason`: a label for metrics, if it differs from the
    label of the error code.
    """

    code: ErrorCode
    message: str
    record_errors: tuple[tuple[int, str], ...] = ()
    reason: str = ""
