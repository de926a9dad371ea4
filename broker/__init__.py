"""The broker: wire codec, connections, partitions, consumer groups and transactions. It keeps no
state that the store does not have.
"""
