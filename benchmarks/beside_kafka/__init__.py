"""Measure Penstock beside Apache Kafka on this machine: the same clients, the same load, in
alternation.

`systems` starts both, `rows` says what is measured and which bars there are, `single`, `several`
and `many` measure, `report` shows the results.
"""
