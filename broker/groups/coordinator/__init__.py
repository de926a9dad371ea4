"""The group coordinator of a broker: runs groups of all protocols and writes their records."""
