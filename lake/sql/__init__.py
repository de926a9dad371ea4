"""Query topics with SQL: DuckDB over `scan`. A topic is a table, and a field of its JSON, Avro or
Protobuf values is a column. Requires the `sql` extra.

`session` runs statements, `topic_table` reads the required part of a topic, `pruning` determines
the offsets that can match a filter, `topic_schema` derives columns, and `json_values` parses JSON
in DuckDB. See docs/how-to/query-with-sql.md and docs/design/readers.md.
"""
