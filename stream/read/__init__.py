"""Stream reads: recent data from memory, older data from objects."""
