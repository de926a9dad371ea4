"""One node as a process: configuration, health, logs, metrics, traces."""
