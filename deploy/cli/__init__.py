"""The `penstock` command: one module for each subcommand."""
