"""`penstock table`: a topic as a table, Iceberg or a directory of Parquet, each offset exactly
once. Needs the extra `table`.

What decides is pure (`plan`, `settle`, `rows`, the schemas); `job` is what an executor does with
one task, `sync` and `compact` drive it, `iceberg` and `directory` are the two kinds of table,
`engines` runs tasks in threads or in Spark. See docs/reference/table.md and ADR 0021.
"""
