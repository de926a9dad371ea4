"""Raft for the controller quorum: a pure core (`core`), its parts, and the driver (`node`) that
connects it to disk and network.
"""
