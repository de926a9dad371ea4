"""All rules for metadata changes, as pure functions of (image, request, now)."""
