"""The error for inconsistent metadata. It always indicates a bug and is caught only by the code
that ends the process.
"""


class InvariantBroken(AssertionError):
    """Raised if a record does not fit the image to which it is applied, or if the image is
    inconsistent.

    The process must stop, because continuing would spread the damage.
    """


def broken(what: str) -> InvariantBroken:
    return InvariantBroken(f"metadata image: {what}")
