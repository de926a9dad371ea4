"""Publication of the public manifest by the active controller. `stream.format.manifest` defines its
contents and encoding.
"""
