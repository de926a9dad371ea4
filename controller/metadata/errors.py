"""What is raised when metadata contradicts itself: a defect, never an operating condition, so
nothing catches it below a process.
"""


class InvariantBroken(AssertionError):
    """A record does not fit the image it is applied to, or the image does not hold together. Stop:
    continuing would spread the damage.
    """


def broken(what: str) -> InvariantBroken:
    return InvariantBroken(f"metadata image: {what}")
