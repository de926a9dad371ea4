"""Read and write topics through Spark Connect: a client without a JVM.

Arguments: address, store, bootstrap servers, a topic to write to, and optionally a zip of Penstock
to send to the server, which does not work for streaming queries. Prints JSON lines.
"""

import json
import sys
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession


def say(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")


def until_ended(writing: Any) -> None:
    """Wait for the query. On a busy machine, the Python process of its source may need longer to
    connect than Spark waits; then start it again.
    """
    while True:
        try:
            writing.start().awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return


def main(address: str, store: str, bootstrap: str, topic: str, package: str = "") -> None:
    builder: Any = SparkSession.builder
    spark: Any = builder.remote(address).getOrCreate()
    source = {"store": store, "subscribe": "in", "minPartitions": "2"}

    def frame() -> Any:
        return spark.read.format("penstock").options(**source).load()

    if package:
        try:
            frame().count()
        except PySparkException as error:
            say(without=str(error).splitlines()[0])
        spark.addArtifacts(package, pyfile=True)
        from penstock.spark import register

        register(spark)
    found = frame().groupBy("partition").count().collect()
    say(counts=sorted((row["partition"], row["count"]) for row in found))
    sink = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    rows = frame().where("offset < 3").select("value")
    rows.write.format("penstock").mode("append").options(**sink).save()
    if not package:
        stream = spark.readStream.format("penstock").options(**source, startingOffsets="earliest")
        writing = stream.load().writeStream.format("memory").queryName("seen")
        until_ended(writing.trigger(availableNow=True))
        say(streamed=spark.table("seen").count())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
