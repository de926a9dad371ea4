"""Parse configs of the form KEY=VALUE or KEY=@FILE."""

import base64

from penstock.deploy.admin.config_units import number_of
from penstock.deploy.cli.input_files import read_file
from penstock.deploy.errors import UsageError

FILE_MARK = "@"
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\r\n")


def parse_topic_config(text: str) -> tuple[str, str]:
    """Return name and value of --config of a topic. Raises UsageError."""
    return parse_pair("--config", text, "retention.ms=1h")


def parse_pair(option: str, text: str, example: str) -> tuple[str, str]:
    """Return name and value; a value with a unit is converted to milliseconds or bytes. A binary
    file, such as a Protobuf descriptor set, is encoded as Base64.

    Raises UsageError with the option and an example, or with the allowed units.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(
            f"{option} {text!r} is invalid: use KEY=VALUE or KEY=@FILE, as in {example}"
        )
    if not value.startswith(FILE_MARK):
        return name, number_of(name, value)
    data = read_file(value.removeprefix(FILE_MARK), f"{option} {text}")
    try:
        shown = data.decode()
    except UnicodeDecodeError:
        return name, base64.b64encode(data).decode()
    return name, base64.b64encode(data).decode() if _CONTROLS & set(data) else shown
