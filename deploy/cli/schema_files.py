"""Read the schema files in options such as `--schema`."""

from pathlib import Path

from penstock.deploy.errors import UsageError


def split_id(text: str) -> tuple[int | None, str]:
    """Return the id and the file of `ID=FILE`, or None and `FILE`."""
    number, separator, file = text.partition("=")
    return (int(number), file) if separator and number.isdecimal() else (None, text)


def read_schema(text: str) -> tuple[int | None, bytes]:
    """Return the id in a schema registry, if given, and the content. Raise UsageError."""
    number, file = split_id(text)
    try:
        return number, Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"--schema {text}: {error.strerror}") from None
