"""The broker: wire codec, connections, partitions, consumer groups and transactions. It keeps no
state that the store does not have.
"""

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.broker: the folder broker is no package of its own")
