"""`penstock table`: write a topic as a table, Iceberg or a directory of Parquet, with each offset
exactly once. Needs the `table` extra.

Decisions are pure (`plan`, `settle`, `rows`, the schemas). `job` is the work of an executor on one
task, `sync` and `compact` drive it, `iceberg` and `directory` are the two kinds of table, and
`engines` runs tasks in threads or in Spark. See docs/reference/table.md and docs/design/tables.md.
"""
