"""The active controller: the single writer, its services, broker sessions, periodic tasks.
`sessions` detects dead brokers; `controller.managers.failover` then replaces them.
"""
