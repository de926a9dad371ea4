"""Every change of metadata, as pure functions of (image, request, now): the rules of the cluster
live here and nowhere else.
"""
