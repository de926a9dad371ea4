"""Run the single writer of the active controller; track the sessions of brokers and the ages of
records.
"""
