"""Run the tasks of the active controller: serve requests, fence, elect, delete, publish."""
