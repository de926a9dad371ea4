"""Schema registries with Confluent's REST API: the client, a cache of schemas by id, and the
framing of values.
"""
