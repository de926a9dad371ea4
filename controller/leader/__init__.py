"""What only the active controller does: serve requests, fence, elect, delete, publish."""
