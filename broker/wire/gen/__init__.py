"""Generated codecs, one module per Kafka API. Written by `python -m penstock.broker.wire.codegen`; never edited by hand."""
