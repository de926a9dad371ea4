"""Provide what every package needs: clocks, backoff, ids, settings, listeners, histograms. Imports
no other package of this project.
"""
