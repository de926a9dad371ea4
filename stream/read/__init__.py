"""Read streams: from memory what is recent, from objects what is older."""
