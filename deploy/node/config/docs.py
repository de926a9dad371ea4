"""Generate `docs/reference/configuration.md` and the `--help` of nodes from the definition.

Invariant: pure and repeatable; a test compares the file in `docs/` with this output.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from penstock.base.settings import (
    Field,
    Kind,
    allowed_briefly,
    fields_of,
    shown,
)
from penstock.broker.config import BrokerConfig
from penstock.broker.dynamic_settings import UNUSED
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.tls import TlsConfig
from penstock.controller.config import ControllerConfig
from penstock.controller.metadata.group_configs import GROUP_CONFIGS
from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS, is_own
from penstock.deploy.node.config.console import ConsoleConfig
from penstock.deploy.node.config.definition import (
    PARTS,
    ProcessConfig,
    Role,
    flag_of,
    settings_of,
    variable_of,
)
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig
from penstock.stream.wal.wal_defaults import CHEAP_WAL_STORE, LOCAL_STORE

_TITLES: Final[dict[type[Any], str]] = {
    ProcessConfig: "Every process",
    ConsoleConfig: "Every process: web console",
    TlsConfig: "Every process: TLS between nodes",
    BrokerConfig: "Brokers",
    SecurityConfig: "Brokers: security",
    StreamConfig: "Brokers: WAL, caches and uploads",
    CompactionConfig: "Brokers: compaction",
    ControllerConfig: "Controllers",
}

_HEAD: Final = """\
# Configuration

<!-- Written by `penstock config docs`; do not edit. -->

Every setting is a flag (`--num-partitions 3`, or `--set num.partitions=3`), a variable (`PENSTOCK_NUM_PARTITIONS=3`) or a key of a TOML file (`--config FILE`, `PENSTOCK_CONFIG`).
A boolean flag without a value means true.
Flags take precedence over variables, variables over the file, and the file over defaults.
An unknown key is an error that suggests the nearest setting.
`penstock config show --role broker` prints the effective values and their sources, and accepts the same options as `penstock broker`.
`penstock config schema` writes a JSON schema.

```toml
store = "s3://my-bucket?region=eu-central-1"       # top level: for every role with this setting
controller.quorum.bootstrap.servers = ["c0:9093", "c1:9093", "c2:9093"]

[broker]                                           # only for brokers; overrides the top level
listeners = "SASL_SSL://0.0.0.0:9092"
advertised.listeners = "SASL_SSL://{pod}.brokers:9092"
log.cache.max.bytes = "512MiB"
```

Durations are milliseconds, or numbers with `ms`, `s`, `min`, `h`, `d`.
Sizes are bytes, or numbers with `KiB`, `MiB`, `GiB` (or `kB`, `MB`, `GB`).
Lists are separated by commas, or are TOML arrays.
A key with another key as its prefix must be quoted in TOML: `"max.connections.per.ip" = 50`.
Settings marked *listener* can be set per listener with the prefix `listener.name.` and the name of the listener in lower case, as in `listener.name.external.ssl.client.auth`.
This value takes precedence over the general one, regardless of whether it is set in the file, with `--set`, or as a variable (`PENSTOCK_LISTENER_NAME_EXTERNAL_SSL_CLIENT_AUTH`).
Settings of processes take effect at the next start, configs of topics, groups and brokers immediately.

Settings marked *live* can also be changed at run time, as configs of one broker or of all brokers (`penstock configs alter --all-brokers`): see [Change settings at run time](../how-to/change-settings.md).
With both marks, they can also change for one listener.
"""

_TOPICS: Final = """\
Set with `penstock configs alter --topic`, Kafka's tools, or when the topic is created; they take
effect immediately.
"""

_UNUSED: Final = """\
Kafka's tools set these broker configs; they are stored and described. Other names that are not live
settings are rejected.

| config | meaning |
|---|---|
"""
_GROUPS: Final = """\
Set with `penstock configs alter --group GROUP` or Kafka's tools; the group need
not exist. A change takes effect with the next heartbeat of a member. A group without a value uses
the coordinator's setting `group.` plus the name of the config; the settings `group.consumer.min.*`,
`group.consumer.max.*`, `group.share.min.*` and `group.share.max.*` limit the values.

| config | default | meaning |
|---|---|---|
"""


def markdown() -> str:
    """Return docs/reference/configuration.md."""
    lines = [_HEAD]
    done: set[type[Any]] = set()
    for part in (part for parts in PARTS.values() for part in parts):
        if part not in done:
            done.add(part)
            lines += [
                f"## {_TITLES[part]}\n",
                "| setting | default | allowed | meaning |",
                "|---|---|---|---|",
            ]
            lines += [*_rows(fields_of(part)), ""]
    lines += [
        "## Topics\n",
        _TOPICS,
        "| config | default | allowed | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{config.name}` | {_code(config.default)} | {_cell(config.allowed)} | {_cell(config.doc)} |"
        for config in TOPIC_CONFIGS.values()
        if not config.is_internal or is_own(config.name)
    ]
    lines += ["", "## Brokers: names of Kafka without effect\n", _UNUSED.rstrip()]
    lines += [f"| `{config.name}` | {_cell(config.doc)} |" for config in UNUSED.values()]
    lines += ["", "## Groups\n", _GROUPS.rstrip()]
    lines += [
        f"| `{config.name}` | {_code(config.default)} | {_cell(config.doc)} |"
        for config in GROUP_CONFIGS.values()
    ]
    return "\n".join(lines) + "\n"


def _rows(fields: Iterable[Field]) -> Iterator[str]:
    for field in fields:
        marks = " *live*" if field.setting.is_dynamic else ""
        marks += " *listener*" if field.setting.per_listener else ""
        yield f"| `{field.name}`{marks} | {_default(field)} | {_cell(allowed_briefly(field.setting))} | {_cell(field.doc)} |"


def _default(field: Field) -> str:
    if field.required:
        return "required"
    text = _code(shown(field.setting, field.default))
    owner = field in fields_of(StreamConfig)
    others = (LOCAL_STORE, CHEAP_WAL_STORE) if owner else ()
    derived = {
        other.where: _code(shown(field.setting, other.values[field.field]))
        for other in others
        if field.field in other.values
    }
    return "; ".join([text, *(f"{where} {value}" for where, value in derived.items())])


def _code(text: str) -> str:
    return f"`{text}`" if text else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def help_text(role: Role) -> str:
    """Return the text of `penstock broker --help`: every setting with the first sentence of its
    description.
    """
    commands = [
        (
            "See also: penstock quorum --help, which shows and changes the quorum, and penstock"
            " controller recover --help."
        ),
        "",
    ]
    example = "num.partitions"
    lines = [
        f"Usage: penstock {role} --store URL [--config FILE] [--SETTING VALUE ...] [--set SETTING=VALUE ...]",
        "",
        *(commands if role == "controller" else ()),
        f"Run one {role}. Every setting is a flag ({flag_of(example)}), a variable ({variable_of(example)}) or a key of the TOML file",
        (
            f"({example}), at its top or in a table [{role}]. Flags take precedence over"
            " variables, variables over the file."
        ),
        (
            f"`penstock config show --role {role}` shows the effective values;"
            " docs/reference/configuration.md describes each setting."
        ),
        "",
        "  --config FILE (PENSTOCK_CONFIG)",
    ]
    for field in settings_of(role).values():
        kind = field.setting.kind
        form = "|".join(field.setting.choices) if kind is Kind.ENUM else kind.value.upper()
        default = (
            "(required)"
            if field.required
            else f"(default: {shown(field.setting, field.default) or 'none'})"
        )
        lines += [
            f"  {flag_of(field.name)} {form}  {default}",
            f"      {first_sentence(field.doc)}",
        ]
    return "\n".join(lines)


def first_sentence(doc: str) -> str:
    """Return the text up to the first full stop that ends a sentence."""
    return re.split(r"(?<=[A-Za-z0-9`)]{2}\.)\s+(?=[A-Z{\-0-9])", doc, maxsplit=1)[0]
