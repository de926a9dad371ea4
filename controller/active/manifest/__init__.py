"""Publish the public manifest from the active controller. `stream.format.manifest` defines its
contents and bytes.
"""
