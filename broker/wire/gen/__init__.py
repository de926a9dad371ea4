"""Generated codecs, one module per Kafka API. Written by `python -m broker.wire.codegen`; never edited by hand."""
