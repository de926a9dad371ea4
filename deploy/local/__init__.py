"""Run a whole cluster on one machine: plan it as values, start it as processes, supervise it and
remove every trace of it.
"""
