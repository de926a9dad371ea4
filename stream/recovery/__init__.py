"""Recovery of a dead broker's WAL, and detection of lost slots."""
