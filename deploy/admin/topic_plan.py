"""Plan the changes that make the topics of a cluster match a file: topics to create, partitions to
add, configs to set.

Invariants: pure. A plan never deletes topics, partitions or configs that are missing from the file.
Applying a file twice changes nothing the second time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.deploy.admin.config_units import number_of
from penstock.deploy.errors import UsageError
from penstock.deploy.output import counted


class WantedTopic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic of the file. partitions: -1 for the cluster's default, or for no change if the topic
    exists.
    """

    name: str
    partitions: int = -1
    configs: dict[str, str | int | float | bool] = {}


class WantedTopics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: `{"topics": [{"name": "orders", "partitions": 3, "configs": {}}]}`."""

    topics: list[WantedTopic]


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic of the cluster. configs: its explicitly set configs."""

    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChangedTopic:
    """The changes of one topic. partitions: the number to create, or the new total; None for no
    change.
    """

    name: str
    is_new: bool
    partitions: int | None
    configs: dict[str, str]

    @property
    def shown(self) -> str:
        parts = [] if self.partitions is None else [f"partitions={self.partitions}"]
        parts += [f"{name}={value}" for name, value in self.configs.items()]
        return f"{'create' if self.is_new else 'change'} {self.name}: {', '.join(parts)}"


def read_wanted(text: bytes, source: str) -> list[WantedTopic]:
    """Read a file: TOML if its name ends with .toml, otherwise JSON. Raises UsageError."""
    try:
        if source.endswith(".toml"):
            wanted = msgspec.toml.decode(text, type=WantedTopics)
        else:
            wanted = msgspec.json.decode(text, type=WantedTopics)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f'{source}: {error}; expected {{"topics": [{{"name": "orders", "partitions": 3,'
            ' "configs": {"retention.ms": 3600000}}]}'
        ) from None
    seen: set[str] = set()
    for topic in wanted.topics:
        if topic.name in seen:
            raise UsageError(f"{source}: topic {topic.name!r} is listed twice; merge the entries")
        if topic.partitions == 0 or topic.partitions < -1:
            raise UsageError(
                f"{source}: topic {topic.name!r} has partitions={topic.partitions}; use 1 or "
                "more, or -1 for the cluster's default"
            )
        seen.add(topic.name)
    return wanted.topics


def plan(wanted: Sequence[WantedTopic], found: Mapping[str, FoundTopic]) -> list[ChangedTopic]:
    """Return the changes in the order of the file. Raises UsageError, before any change is made, if
    one of them is impossible.
    """
    changes: list[ChangedTopic] = []
    for topic in wanted:
        configs = {name: number_of(name, _text(value)) for name, value in topic.configs.items()}
        there = found.get(topic.name)
        if there is None:
            changes.append(ChangedTopic(topic.name, True, topic.partitions, configs))
            continue
        if 0 < topic.partitions < there.partitions:
            raise UsageError(
                f"topic {topic.name!r} has {counted(there.partitions, 'partition')}, which"
                f" cannot be reduced to {topic.partitions}; nothing was changed"
            )
        partitions = topic.partitions if topic.partitions > there.partitions else None
        altered = {
            name: value for name, value in configs.items() if there.configs.get(name) != value
        }
        if partitions is not None or altered:
            changes.append(ChangedTopic(topic.name, False, partitions, altered))
    return changes


def _text(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
