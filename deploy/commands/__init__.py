"""The subcommands of `penstock`: options and output; the work is elsewhere."""
