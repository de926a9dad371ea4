"""The write-ahead log on objects: what to PUT when, and who may be told that it is durable."""
