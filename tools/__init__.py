"""Development tools, which the wheel does not contain."""
