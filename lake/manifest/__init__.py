"""Read the public manifest, which controllers write, and plan reads from it. A reader needs only
the store.
"""
