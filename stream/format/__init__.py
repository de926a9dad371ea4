"""Implement the format of all objects: layout, writer and reader. Pure. docs/reference/formats.md
describes every byte.
"""
