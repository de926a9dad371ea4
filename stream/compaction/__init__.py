"""Compact the streams of this broker: move their ranges from WAL objects and many small objects to
few larger ones.
"""
