"""The reason why a batch was not appended."""

from dataclasses import dataclass

from penstock.protocol.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a batch was not appended. `record_errors`: (index in the batch, message), for
    clients from Produce v8 on. `reason`: a label of metrics, where it is not that of the code.
    """

    code: ErrorCode
    message: str
    record_errors: tuple[tuple[int, str], ...] = ()
    reason: str = ""
