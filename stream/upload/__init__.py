"""Upload the log cache as objects, commit them, and close streams without a rewrite."""
