"""Parse the users file, which has one `name:password` per line. Pure. Error messages contain line
numbers, but never a password.
"""

from typing import Final

USERS_MAX: Final = 1_000
"""Maximum number of users in one file, because deriving a user's keys takes milliseconds of CPU."""


def parse_users(text: str) -> dict[str, str]:
    """Return the passwords by user name. Empty lines and lines that start with # are ignored.
    Raises ValueError.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not (name and colon and password):
            raise ValueError(f"line {number} is not name:password")
        if name in users:
            raise ValueError(f"line {number} contains {name!r} again")
        users[name] = password
    if len(users) > USERS_MAX:
        raise ValueError(f"{len(users)} users; at most {USERS_MAX} are allowed")
    return users
