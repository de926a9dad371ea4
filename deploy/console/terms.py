"""Explain the terms in table headers and on tiles; pages show the explanations as tooltips.

The glossary (docs/reference/glossary.md) contains longer explanations.
"""

from collections.abc import Mapping
from typing import Final

TERMS: Final[Mapping[str, str]] = {
    "Append p50": "Half of the appends were acknowledged faster than this.",
    "Append p99": "99 of 100 appends were acknowledged faster than this.",
    "Assignor": "How the group distributes partitions among its members.",
    "Candidates": "Brokers that may lead the partition, in order of preference. No data is copied"
    " between them.",
    "Caught up": "Since the controller last had all metadata of the leader.",
    "Committed": "Bytes in objects that the metadata list. Newer records are in write-ahead logs.",
    "Committed slots": "Objects of the write-ahead log whose records the metadata list.",
    "Committed to": "Offset up to which records are in objects that the metadata list. Newer"
    " records are durable in the write-ahead log.",
    "Coordinator": "The broker that keeps the offsets and members of the group.",
    "End": "Offset of the next record.",
    "Epoch": "Increases whenever the leader or owner changes, so that an old one is recognized.",
    "In WALs": "Bytes of records that are durable in write-ahead logs, and not yet in objects of"
    " the topic.",
    "Lag": "Records between the committed offset of the group and the end of the log.",
    "Leader epoch": "Increases with each new leader.",
    "Leads": "Number of partitions that the broker leads.",
    "Loop lag": "Longest time that something kept the broker from responding to others.",
    "Objects": "Objects in the store that contain records of the partition.",
    "One full read": "Requests to the store of one consumer that reads the whole topic.",
    "Open streams": "Streams that the broker writes: three for each partition that it leads.",
    "Owner": "The broker that may write the stream, or was the last one.",
    "Ranges": "Parts of the stream, each in one object.",
    "Records": "Offsets between start and end of the logs. Log compaction and markers of"
    " transactions leave some of them without a record.",
    "Recoverer": "The broker that reads what a dead broker has written.",
    "Session": "The controllers fence a broker that sends no heartbeat within its session timeout.",
    "Shared": "Bytes that a fork or snapshot uses as well.",
    "Size": "Bytes of all records, in objects and in write-ahead logs.",
    "Start": "Offset of the first record that is kept.",
    "Stored": "Bytes of records in objects. Those of the last seconds are still in write-ahead"
    " logs.",
    "Topology epoch": "Version of the topology of the Kafka Streams application.",
    "Without leader": "Partitions that nobody can write or read until a leader is elected.",
}
