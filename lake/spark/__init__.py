"""`spark.read.format("penstock")`: Kafka's source for Spark, read from the store. Needs the extra
`spark`.

Options, rules and errors are those of `format("kafka")`. Everything with a rule in it is pure
(`options`, `offsets`, `ranges`, `limits`, `packing`, `filters`); `source` is what Spark calls,
`cluster` what looks into the store, `tasks` what executors do.
"""
