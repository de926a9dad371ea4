"""The entry point: `python -m pipeline.main run`, or `spark-submit` with this file."""

import argparse
import logging
import signal
import sys

from pipeline import backfill, lag, quality, session, streams, tables
from pipeline.config import Config

_log = logging.getLogger("pipeline")


def run(config: Config, only: list[str], *, available_now: bool) -> int:
    """Run queries until one fails, or with `available_now` until they have read everything."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    spark = session.start(config)
    try:
        tables.create(spark)
        if available_now:
            streams.drain(spark, config, only)
        else:
            for name in only:
                streams.start(spark, config, name)
            spark.streams.awaitAnyTermination()  # raises the error of a failed query
    finally:
        spark.stop()
    return 0


def run_backfill(config: Config, since: str, until: str) -> int:
    spark = session.start(config)
    try:
        tables.create(spark)
        backfill.run(spark, config, since, until)
    finally:
        spark.stop()
    return 0


def check(config: Config) -> int:
    """Print the violations of each rule. Return 1 if there are any."""
    spark = session.start(config)
    try:
        found = quality.violations(spark)
    finally:
        spark.stop()
    for rule, count in found.items():
        print(f"{count:>8,}  {rule}")
    return int(any(found.values()))


def alert(config: Config) -> int:
    """Print the lag of each query. Return 1 if a lag exceeds the limit."""
    found = {query: lag.behind(config, query) for query in lag.TOPICS}
    for query, count in found.items():
        print(f"{count:>8,}  {query}{'  ALERT' if count > config.lag_max else ''}")
    return int(max(found.values()) > config.lag_max)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pipeline")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run the streaming queries")
    running.add_argument("--only", nargs="+", choices=streams.QUERIES, default=[*streams.QUERIES])
    running.add_argument("--available-now", action="store_true", help="stop when all is read")
    filling = commands.add_parser("backfill", help="compute months again from the bucket")
    filling.add_argument("since", help="the first month, such as 2013-01")
    filling.add_argument("until", help="the month after the last one")
    commands.add_parser("check", help="run the data-quality checks")
    commands.add_parser("lag", help="print how far the queries are behind; exit code 1: too far")
    given = parser.parse_args(arguments)
    config = Config.from_environment()
    match given.command:
        case "run":
            return run(config, given.only, available_now=given.available_now)
        case "backfill":
            return run_backfill(config, given.since, given.until)
        case "check":
            return check(config)
        case _:
            return alert(config)


if __name__ == "__main__":
    sys.exit(main())
