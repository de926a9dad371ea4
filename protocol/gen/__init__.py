"""Generated codecs, one module per Kafka API. Written by `python -m tools.protocol.codegen`; never edited by hand."""
