# %% [markdown]
# # Flights: Spark on the log, straight from object storage
#
# The topic `flights` holds the flights that left New York in 2013, as JSON, with the carrier as the
# key; `penstock demo --spark` shows how it gets there. The following only needs the address of the
# store; no broker is contacted or needs to be running. Open it as a notebook (VS Code, Jupytext),
# or run it: `STORE=s3://... python flights_spark.py`.

# %%
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

STORE = os.environ.get("STORE", "s3://penstock?endpoint=http://127.0.0.1:9000")
os.environ["PYSPARK_PYTHON"] = sys.executable  # otherwise Spark's workers run whatever `python3` is

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.python.filterPushdown.enabled", "true")
    .getOrCreate()
)

# %% [markdown]
# ## A topic is a table
# Columns and options are those of `format("kafka")`.

# %%
log = spark.read.format("penstock").option("store", STORE).option("subscribe", "flights").load()
log.printSchema()
log.select(log["key"].cast("string"), "partition", "offset", "timestamp").show(5, truncate=False)

# %%
values = f.from_json(
    log["value"].cast("string"),
    "carrier string, origin string, dest string, dep_delay long, distance long",
)
flights = log.select("timestamp", values.alias("flight")).select("timestamp", "flight.*").cache()

# %% [markdown]
# ## How late does each carrier leave?

# %%
by_carrier = (
    flights.groupBy("carrier")
    .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("delay"))
    .orderBy(f.desc("delay"))
)  # fmt: skip
by_carrier.show()

# %%
from matplotlib.figure import Figure  # noqa: E402 - cells import what they need

rows = by_carrier.collect()
figure = Figure(figsize=(8, 4), layout="constrained")
axes = figure.subplots()
axes.bar([row["carrier"] for row in rows], [row["delay"] for row in rows])
axes.set_ylabel("average departure delay, minutes")
figure.savefig("flights.png")
figure  # noqa: B018 - what a notebook shows

# %% [markdown] ## Only the required data is read Partition, offset and timestamp are pushed down;
# columns that are not requested are not decoded.

# %%
offsets = (
    spark.read.format("penstock")
    .option("store", STORE)
    .option("subscribe", "flights")
    .option("columns", "partition,offset")
    .load()
)
offsets.where("partition = 0").agg(
    f.count("*").alias("records"), f.max("offset").alias("newest")
).show()

# %% [markdown] ## The same without Spark `scan` returns Arrow data for pandas, Polars, DuckDB or
# your own program.

# %%
import duckdb  # noqa: E402

from penstock import scan  # noqa: E402

keys = scan(STORE, "flights", columns=["key"])
duckdb.sql(
    "SELECT key::VARCHAR AS carrier, count(*) AS flights FROM keys GROUP BY 1 ORDER BY 2 DESC"
    " LIMIT 3"
).show()

# %%
spark.stop()
