"""Consumer groups and share groups for the command line: what they have read, and who reads."""
