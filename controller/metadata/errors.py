"""The error for inconsistent metadata. It is a bug, never an operating condition, so no code below
the process catches it.
"""


class InvariantBroken(AssertionError):
    """A record does not fit the image that it is applied to, or the image is inconsistent.

    The process must stop: continuing would spread the damage.
    """


def broken(what: str) -> InvariantBroken:
    return InvariantBroken(f"metadata image: {what}")
