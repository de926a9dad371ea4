"""Object formats: layout, writer and reader. Pure. docs/reference/formats.md describes
every byte.
"""
