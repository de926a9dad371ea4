"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat (KIP-62, KIP-345, KIP-394)."""
