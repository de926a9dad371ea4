"""The rules for all metadata changes, as pure functions of (image, request, now)."""
