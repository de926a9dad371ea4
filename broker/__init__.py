"""The Kafka face: wire codec, connections, partitions, groups. Keeps no state that the store does
not have.
"""
