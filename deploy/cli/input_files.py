"""Read files that are given in options."""

from pathlib import Path

from penstock.deploy.errors import UsageError


def read_file(path: str | Path, what: str) -> bytes:
    """Return the content. what: the option and its value, for UsageError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}") from None


def read_text(path: Path) -> str:
    """Return the content. Raises UsageError."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def split_id(text: str) -> tuple[int | None, str]:
    """Return the id and the file of `ID=FILE`, or None and `FILE`."""
    number, separator, file = text.partition("=")
    return (int(number), file) if separator and number.isdecimal() else (None, text)


def read_schema(text: str) -> tuple[int | None, bytes]:
    """Return the id in a schema registry, if given, and the content. Raise UsageError."""
    number, file = split_id(text)
    return number, read_file(file, f"--schema {text}")
