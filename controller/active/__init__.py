"""The active controller: the single writer, its services, broker sessions, and periodic tasks.
`sessions` detects dead brokers, and `controller.managers.failover` then replaces them.
"""
