"""Test the pipeline with real brokers: kill a broker, and restart every query."""

import itertools
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from penstock.deploy.demo.story import airlines
from penstock.deploy.local.handle import LocalCluster
from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.source import PenstockSource
from pipeline import backfill, local, main, quality, streams, tables, verdict
from pipeline.config import DEAD, Config
from pipeline.replay import RENAMED, Replay, create_topics, events

FLIGHTS = 1_500


def test_everything_arrives_once(
    spark: SparkSession,
    cluster: LocalCluster,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_topics(config.bootstrap)
    tables.create(spark)
    replay = Replay(config.bootstrap, config.schema_registry)
    replay.send_carriers(airlines())
    stream = events(FLIGHTS, bad_every=50)
    replay.send(itertools.islice(stream, FLIGHTS // 2))
    streams.drain(spark, config, ["refine", "events", "carriers"])
    victim = cluster.brokers()[0]
    cluster.kill([victim])
    replay.send(stream)
    cluster.wait_for_new([victim])
    replay.send_carriers(dict([RENAMED]))

    for name, value in replace(config, lag_max=100).to_environment().items():
        monkeypatch.setenv(name, value)
    assert main.main(["lag"]) == 1
    assert "refine  ALERT" in capsys.readouterr().out
    local.drain(spark, config)
    assert main.main(["lag"]) == 0

    found = verdict.of_streams(spark, config, replay.sent, len(airlines()))
    backfill.run(spark, config, "2013-01", "2013-02")
    found += verdict.of_hours(spark, replay.sent.hours)
    assert [item for item in found if not item.is_right] == []
    dead = verdict.topic(spark, config, DEAD).collect()
    problems = {
        item.value.decode() for row in dead for item in row.headers if item.key == "problem"
    }
    assert any("Expected `int`, got `str` - at `$.distance`" in problem for problem in problems)
    assert (replay.sent.valid, replay.sent.bad) == (FLIGHTS, FLIGHTS // 50)
    assert not any(quality.violations(spark).values())
    names = dict(spark.table(tables.CARRIERS).select("carrier", "name").collect())
    assert names == airlines() | dict([RENAMED])


def test_spark_4_1_does_not_limit_micro_batches() -> None:
    options = {"store": "memory:", "subscribe": "t", "startingOffsets": "earliest"}
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"):
        source = PenstockSource(options | {name: "10"})
        with pytest.raises(InvalidOption, match=rf"{name}: needs Spark 4\.2"):
            source.streamReader(source.schema())
