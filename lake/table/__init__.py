"""`penstock table`: write a topic to a table (Iceberg or a Parquet directory), with each offset
exactly once. Requires the `table` extra.

Decisions are pure (`plan`, `settle`, `rows`, the schemas). `job` contains the work of an executor
on one task, `sync` and `compact` drive it, `iceberg` and `directory` are the two kinds of table,
and `engines` runs tasks in threads or in Spark. See docs/reference/table.md and
docs/design/tables.md.
"""
