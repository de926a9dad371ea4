"""Administrative operations that the CLI, the console and the mirror share."""
