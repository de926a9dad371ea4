"""Puts this directory on the import path: tests share what is in `support/` as `from support.cluster import Cluster`."""
