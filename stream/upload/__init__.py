"""Upload of the log cache as objects, commits, and closing streams in place."""
