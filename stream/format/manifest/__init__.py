"""Encoding and model of the public manifest, which the controller writes and
`lake.manifest` reads.
"""
