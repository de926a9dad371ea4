"""What `penstock sql` does besides the queries of `lake.sql`: the prompt, and the forms of rows."""
