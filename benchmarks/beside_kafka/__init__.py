"""Compare Penstock with Apache Kafka on this machine: the same clients and load, in alternation.

`systems` starts both, `rows` defines measurements and bars, `single`, `several` and `many` measure,
`report` shows the results.
"""
