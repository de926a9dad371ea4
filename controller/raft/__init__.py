"""Raft for the controller quorum: a pure core (`core`) with its components, and a driver (`node`)
that connects it to the disk and the network.
"""
