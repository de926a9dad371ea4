"""Query topics with SQL: DuckDB over `scan`. A topic is a table, and a field of its JSON, Avro or
Protobuf values is a column.

`session` runs statements, `topic_table` reads what a statement needs of a topic, `pruning` finds
the offsets that a filter leaves, `shape` derives columns, `json_values` parses JSON in DuckDB.
"""
