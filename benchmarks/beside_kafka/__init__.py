"""Compare Penstock with Apache Kafka on the same machine, with the same clients and load, in
alternation.

`systems` starts both, `rows` defines measurements and targets, `single`, `several` and `many`
measure, `report` shows the results.
"""
