"""Bulk rewrites of topics by jobs, which merge small objects into large ones without load on
brokers.
"""
