"""The reason why a batch was not appended."""

from dataclasses import dataclass

from penstock.protocol.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a batch was not appended. `record_errors`: (index in the batch, message), for
    clients since Produce v8. `reason`: a label for metrics, if it differs from the code's.
    """

    code: ErrorCode
    message: str
    record_errors: tuple[tuple[int, str], ...] = ()
    reason: str = ""
