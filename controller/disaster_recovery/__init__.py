"""Rebuilds the metadata from the store after the disks of all controllers are lost.

`penstock controller recover` uses this package.
"""
