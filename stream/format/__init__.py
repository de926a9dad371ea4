"""The one object format: layout, writer and reader, all pure. Byte by byte in
docs/reference/formats.md.
"""
