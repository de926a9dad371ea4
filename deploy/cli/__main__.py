"""Dispatch the `penstock` command by its first argument."""

import atexit
import codecs
import errno
import os
import sys
from io import TextIOWrapper
from typing import Final, Literal, NoReturn

_NODES: Final[dict[str, Literal["broker", "controller"]]] = {
    "broker": "broker",
    "controller": "controller",
}
COMPLETE: Final = "_PENSTOCK_COMPLETE"
"""Environment variable set by the scripts of `penstock completion`."""
_INTERRUPTED: Final = 130
_ESCAPED: Final = "penstock-escaped"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


# Invariant: this module imports nothing expensive: nodes start before typer is imported, and
# `--help` imports no client. Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
def main() -> None:
    """Run the console script; end the process."""
    from penstock.base.errors import ExpectedError
    from penstock.base.installation import ForeignFiles, check_package
    from penstock.deploy.errors import print_error
    from penstock.protocol.errors import UnencodableValue

    _open_closed_streams()
    try:
        check_package()
        if len(sys.argv) > 1 and sys.argv[1] in _NODES and not _is_command(sys.argv[2:]):
            from penstock.deploy.node.process import run

            sys.exit(run(_NODES[sys.argv[1]], sys.argv[2:]))
        from penstock.deploy.local import bytecode

        bytecode.keep_bytecode()
        _escape_unencodable_output()
        is_sql = sys.argv[1:2] == ["sql"]
        if is_sql:
            from penstock.base.collector import pause_collector

            pause_collector()
        from penstock.deploy.cli.app import app

        if COMPLETE in os.environ:
            from penstock.deploy.cli.lazy import completion_module

            completion_module().completion_init()
        try:
            app(prog_name="penstock")
        except SystemExit as end:
            if is_sql:
                _leave(end.code)
            raise
    except ExpectedError as error:
        print_error(error)
        sys.exit(error.exit_code)
    except (ForeignFiles, UnencodableValue) as error:
        print_error(error)
        sys.exit(2 if isinstance(error, UnencodableValue) else 1)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except OSError as error:
        _output_failed(error)


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed, as after `>&-`. Otherwise, a
    file or socket would be assigned its number and receive the printed output.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # this is assigned the lowest free number
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115 - open until the process ends


def _escape_unencodable_output() -> None:
    """Print characters that the encoding of the output lacks, such as ISO-8859-1, with the escapes
    of JSON.
    """

    def escaped(error: UnicodeError) -> tuple[str, int]:
        import json

        assert isinstance(error, UnicodeEncodeError)
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error(_ESCAPED, escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in {"strict", "backslashreplace"}:
            stream.reconfigure(errors=_ESCAPED)


def _output_failed(error: OSError) -> NoReturn:
    """End the process if the reader of its output has ended or the disk is full. Raise other
    errors.
    """
    from penstock.deploy.errors import print_error

    if error.errno in _FULL:
        print_error(f"{error.filename or 'the output'} cannot be written: {error.strerror}")
    elif not isinstance(error, BrokenPipeError):
        raise error
    sys.stderr.close()  # otherwise, Python would report the remaining output
    sys.exit(1)


def _leave(code: object) -> None:
    """End the process without Python's finalization, which takes 0.1 s once DuckDB and Arrow are
    loaded. Return normally if Python must report an output error, or an exit code that is a string.
    """
    if not isinstance(code, int):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] - as multiprocessing does
    os._exit(code)


def _is_command(arguments: list[str]) -> bool:
    """Return True for `penstock controller recover`, because a node has only flags."""
    return bool(arguments) and sys.argv[1] == "controller" and not arguments[0].startswith("-")


if __name__ == "__main__":
    main()
