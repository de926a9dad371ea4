"""Compute the lag of each query by comparing its checkpoint with the store. Needs neither Spark nor
a running driver, so it also detects a driver that has died.
"""

import json

from pyarrow import fs

from penstock import scan
from pipeline import config as names
from pipeline.config import Config

TOPICS = {
    "refine": names.RAW,
    "events": names.CLEAN,
    "hourly": names.CLEAN,
    "carriers": names.CARRIERS,
}
"""The topic that each query reads."""


def behind(config: Config, query: str) -> int:
    """Return the number of offsets in the topic that the query has not committed yet, including
    those of open transactions.
    """
    topic = TOPICS[query]
    done = committed(config, query).get(topic, {})
    return sum(
        end - max(start, done.get(str(partition), 0))
        for partition, (start, end) in scan(config.store, topic).offsets.items()
    )


def committed(config: Config, query: str) -> dict[str, dict[str, int]]:
    """Return the offsets of the last micro-batch that the query has committed, by topic."""
    number = commit_count(config, query) - 1
    if number < 0:
        return {}
    files, path = fs.FileSystem.from_uri(f"{_url(config)}/{query}/offsets/{number}")
    with files.open_input_stream(path) as log:
        # The version, metadata of the micro-batch, and a line for each source.
        return json.loads(log.readall().decode().splitlines()[2])


def commit_count(config: Config, query: str) -> int:
    """Return the number of micro-batches that the query has committed."""
    files, path = fs.FileSystem.from_uri(f"{_url(config)}/{query}/commits")
    found = files.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return max((int(item.base_name) for item in found if item.base_name.isdigit()), default=-1) + 1


def _url(config: Config) -> str:
    """Return the URL with pyarrow's scheme: Hadoop uses `s3a` for S3."""
    return config.checkpoints.replace("s3a://", "s3://", 1)
