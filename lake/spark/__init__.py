"""`spark.read.format("penstock")`: Spark's Kafka source on top of the store. Requires the `spark`
extra.

Options, rules and errors are the same as for `format("kafka")`. Modules with rules are pure
(`options`, `offsets`, `ranges`, `limits`, `packing`, `filters`). Spark calls `source`, `cluster`
reads the store, and executors run `tasks`.
"""
