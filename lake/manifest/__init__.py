"""Read the public manifest, which controllers write, and plan reads from it. A reader requires only
the store.
"""
