"""The public manifest: what a reader needs that has nothing but the store. The controller writes
it, readers plan from it.
"""
