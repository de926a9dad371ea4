"""Balancing: what brokers measured, which of them are slow, and which moves follow from it. ADR
0015.
"""
