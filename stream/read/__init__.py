"""Read streams: recent data from memory, older data from objects."""
