"""Internal topics, which contain the state of coordinators, and operations forbidden to clients.

Kafka allows clients to delete these topics, add partitions and change all configs. Any of these
changes may lose committed offsets or transactions: the partition of a key depends on the number of
partitions, and retention or limits remove records.
"""

from typing import Final

from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
SHARE_STATES_TOPIC: Final = "__share_group_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATES_TOPIC})

CLEANUP_POLICY: Final = "cleanup.policy"
COMPACT: Final = "compact"
_NUMBERS_NOT_BELOW_DEFAULT: Final = frozenset(
    {"max.message.bytes", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"}
)


def config_problem(name: str, value: str) -> str:
    """Return the reason why an internal topic cannot have this config, with the allowed values, or
    "" if it can. The value must be valid for a topic.
    """
    if name == CLEANUP_POLICY and value != COMPACT:
        return (
            f"config {name}={value!r} would lose offsets, transactions or states: an internal"
            f" topic must have {COMPACT!r}"
        )
    if name in _NUMBERS_NOT_BELOW_DEFAULT and int(value) < int(TOPIC_CONFIGS[name].default):
        lowest = TOPIC_CONFIGS[name].default
        return (
            f"config {name}={value!r} would refuse the records of coordinators: an internal topic"
            f" must have at least {lowest}"
        )
    return ""
