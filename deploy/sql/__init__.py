"""The prompt and output formats of `penstock sql`; the queries are in `lake.sql`."""
