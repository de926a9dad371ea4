"""Run a whole cluster on one machine: plan it, start its processes, supervise them, and remove
every trace of them.
"""
