"""What every package needs and none owns: clocks, backoff, ids, settings, listeners, histograms.
Imports nothing of ours.
"""
