"""Query topics with SQL: DuckDB over `scan`. A topic is a table, and a field of its JSON, Avro or
Protobuf values is a column. Needs the extra `sql`.

`session` runs statements, `topic_table` reads what a statement needs of a topic, `pruning` finds
the offsets that a filter leaves, `topic_schema` derives columns, and `json_values` parses JSON in
DuckDB. See docs/how-to/query-with-sql.md and docs/design/readers.md.
"""
