"""Convert errors of commands that read the store into one line for the user."""

from collections.abc import Generator
from contextlib import contextmanager

from penstock.base.errors import ExpectedError, StreamError
from penstock.base.extras import install_hint
from penstock.deploy.clients.slow_servers import report_slow_servers
from penstock.deploy.errors import UsageError
from penstock.deploy.node import logs
from penstock.lake.sql.errors import SqlError
from penstock.lake.table.errors import InvalidSchema, InvalidTable
from penstock.objectstore.errors import InvalidStoreUrl, ObjectStoreError


@contextmanager
def one_line_errors(extra: str) -> Generator[None, None, None]:
    """Raise ExpectedError, which prints one line, for errors that a user can act on. extra: the
    extra whose packages the command requires.
    """
    logs.to_stderr("warning")
    report_slow_servers()
    try:
        yield
    except ImportError as error:
        raise ExpectedError(f"the package {error.name} is missing: {install_hint(extra)}") from None
    except (InvalidSchema, InvalidTable, InvalidStoreUrl) as error:
        raise UsageError(str(error)) from None
    except (SqlError, StreamError, ObjectStoreError) as error:
        raise ExpectedError(str(error)) from None
