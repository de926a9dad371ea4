"""Publication of the public manifest by the active controller. `stream.format.manifest` defines the
contents and the encoding.
"""
