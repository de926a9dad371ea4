"""Define the public manifest as bytes and values. The controller writes it, `lake.manifest` reads
it.
"""
