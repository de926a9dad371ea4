"""The Kafka protocol: messages, record batches, error codes, SASL, clients. Only `client/` uses
sockets, clocks and asyncio.
"""

import os

if not __name__.startswith("penstock."):
    raise ImportError("import penstock.protocol: the folder protocol is not a top-level package")
if os.path.islink(__path__[0]):  # in a checkout, tools then report real paths
    __path__ = [os.path.realpath(__path__[0])]
