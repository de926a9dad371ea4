"""Names by which checkers distinguish partitions of topics that are deleted and recreated: one for
each incarnation of a topic. Pure.
"""

from typing import Final

from penstock.controller.metadata.image import MetadataImage
from tests.support.history import Part

PREFIX: Final = "life-"
SEPARATOR: Final = "@"
"""The separator, which topic names cannot contain."""


def place_of(image: MetadataImage, part: Part) -> Part:
    """Return the name. part: as in a request. Without an id after the separator, this image has no
    such topic. Other topics keep their names.
    """
    if not part[0].startswith(PREFIX):
        return part
    topic = image.topics.by_name(part[0])
    return f"{part[0]}{SEPARATOR}{'' if topic is None else topic.topic_id}", part[1]
