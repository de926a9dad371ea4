"""Implement the write-ahead log on objects: when to PUT what, and which appends are durable."""
