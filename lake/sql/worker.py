"""The process that runs one statement for `lake.sql.process`.

DuckDB checks neither time nor memory during a function call, and a call may allocate gigabytes or
run for hours. The kernel therefore enforces both limits, and kills this process when its parent has
ended.
"""

import fcntl
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from penstock.base.core_dumps import forgo_core_dumps
from penstock.lake.arrow.pyarrow_untyped import RecordBatch, pa
from penstock.lake.sql.errors import SqlError
from penstock.lake.sql.process_limits import limit_memory, out_of_memory
from penstock.lake.sql.process_messages import (
    LENGTH_BYTES,
    RaisedError,
    ResultFrame,
    RunStatement,
    decode_request,
    framed,
)
from penstock.lake.sql.result import SqlResult
from penstock.lake.sql.session import Session

PIECE_BYTES: Final = 4 << 20
"""Maximum size of the rows in one frame, unless a single row is larger."""
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_STDIN: Final = 0
_STDOUT: Final = 1


def main() -> None:
    request = decode_request(_exactly(int.from_bytes(_exactly(LENGTH_BYTES), "big")))
    _end_with_parent()
    if request.seconds is not None:  # the kernel kills the process at this limit
        signal.setitimer(signal.ITIMER_REAL, max(request.seconds, 0.001))
    forgo_core_dumps()
    with suppress(OSError):  # if memory runs out, the kernel kills this process first
        _OOM_SCORE.write_text("1000")
    with os.fdopen(os.dup(_STDOUT), "wb") as out:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        try:
            _run(request, out)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            _send(out, ResultFrame("error", error=RaisedError.of(error)))


def _run(request: RunStatement, out: IO[bytes]) -> None:
    with Session(request.store, request.options) as session:
        limit_memory(session.memory_limit_bytes())
        try:
            _send_rows(session.run(request.query, max_rows=request.max_rows), request, out)
        except MemoryError:
            raise out_of_memory() from None


def _send_rows(result: SqlResult, request: RunStatement, out: IO[bytes]) -> None:
    schema = result.schema.serialize().to_pybytes()
    left = request.bytes_max
    if left is not None and len(schema) > left:
        raise SqlError(f"the columns of the result exceed {left:,} bytes: select fewer columns")
    _send(out, ResultFrame("schema", schema))
    is_cut, sent_count = False, 0
    for piece in _pieces(result, PIECE_BYTES if left is None else min(PIECE_BYTES, left // 8)):
        if left is not None:
            left -= piece.nbytes
            if left < 0:
                is_cut = True
                break
        sent_count += piece.num_rows
        _send(out, ResultFrame("rows", _stream_of(piece), result.warnings))
    if is_cut and not sent_count:
        raise SqlError(f"a row exceeds {request.bytes_max:,} bytes: select less of it")
    end = ResultFrame("end", b"", result.warnings, is_cut or result.is_truncated)
    result.close()
    _send(out, end)


def _pieces(result: SqlResult, bytes_max: int) -> Iterator[RecordBatch]:
    """Yield rows in parts of at most `bytes_max`; a single row may exceed this."""
    for batch in result.batches():
        waiting = [batch]
        while waiting:
            piece = waiting.pop()
            if piece.nbytes <= bytes_max or piece.num_rows < 2:
                yield piece
            else:
                half = piece.num_rows // 2
                waiting += (piece.slice(half), piece.slice(0, half))


def _stream_of(piece: RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema) as writer:
        writer.write_batch(piece)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _send(out: IO[bytes], frame: ResultFrame) -> None:
    out.write(framed(frame))
    out.flush()


def _exactly(size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = os.read(_STDIN, size - len(found))
        if not piece:
            sys.exit("the parent has ended")
        found += piece
    return bytes(found)


def _end_with_parent() -> None:
    """Make the kernel kill this process when the other end of standard input closes, because a
    waiting thread would not run while native code holds the GIL.
    """
    fcntl.fcntl(_STDIN, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(_STDIN, fcntl.F_SETFL, fcntl.fcntl(_STDIN, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([_STDIN], [], [], 0)[0]:
        sys.exit("the parent has ended")


if __name__ == "__main__":
    main()
