"""The active controller: the single writer, its services, broker sessions, periodic tasks."""
