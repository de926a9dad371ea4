"""Decide every change of metadata, as pure functions of (image, request, now). The rules of the
cluster are here and nowhere else.
"""
