"""The process of `penstock table run`: its health, metrics and text output."""
