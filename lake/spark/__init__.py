"""`spark.read.format("penstock")`: Kafka's source for Spark, read from the store. Needs the extra
`spark`.

Options, rules and errors are those of `format("kafka")`. Modules with rules are pure (`options`,
`offsets`, `ranges`, `limits`, `packing`, `filters`). Spark calls `source`, `cluster` reads the
store, and executors run `tasks`.
"""
