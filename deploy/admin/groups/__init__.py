"""Groups for the command line: their offsets, lag and members."""
