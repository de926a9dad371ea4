"""The transaction coordinator: which producer may use a transactional id, its open transaction, and
how that transaction ends.
"""
