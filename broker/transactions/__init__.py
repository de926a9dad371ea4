"""The transaction coordinator: who may write under a transactional id, which transaction of it is
open, and how it ends.
"""
