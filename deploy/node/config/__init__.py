"""Configuration of processes: the settings of each role, where values come from, and what is made
of both.
"""
