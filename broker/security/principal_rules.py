"""Map the distinguished name of a certificate to a principal, with the rules of
`ssl.principal.mapping.rules` (KIP-371). Pure.

RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),.*$/$1/L, DEFAULT
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from penstock.base.regular_expressions import Regex, RegexGroups, RegexInvalid, compiled

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,\s*|$)"
)
_REFERENCE: Final = re.compile(r"\\(.)|\$([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule. pattern: None for DEFAULT, which uses the name unchanged."""

    pattern: Regex | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        result = _REFERENCE.sub(lambda reference: _replaced(reference, found), self.replacement)
        return result.lower() if self.case == "L" else result.upper() if self.case else result


def _replaced(reference: re.Match[str], found: RegexGroups) -> str:
    """Return the replacement for a reference like `$12`: the longest prefix that is a group number,
    followed by the remaining digits.
    """
    if reference[1] is not None:
        return reference[1]
    digits = reference[2]
    groups = len(found.groups())
    end = len(digits)
    while end > 1 and int(digits[:end]) > groups:
        end -= 1
    number = int(digits[:end])
    return reference[0] if number > groups else (found.group(number) or "") + digits[end:]


class PrincipalRules:
    """The rules of one setting. The first rule whose pattern matches the whole name applies.

    Unlike Java patterns, RE2 patterns take linear time, and support neither lookarounds nor
    back-references.
    """

    def __init__(self, rules: tuple[_Rule, ...]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse rules. Raises ValueError with the invalid rule in the message."""
        rules: list[_Rule] = []
        at, text = 0, text.strip()
        while at < len(text):
            found = _RULE.match(text, at)
            if found is None or found.end() == at:
                raise ValueError(
                    f"{text[at:]!r} is not a rule: write DEFAULT or RULE:pattern/replacement/,"
                    " optionally followed by L or U; separate rules by commas"
                )
            at = found.end()
            if found["default"]:
                rules.append(_Rule(None, "", ""))
                continue
            try:
                pattern = compiled(found["pattern"], has_groups=True)
            except RegexInvalid as error:
                raise ValueError(f"{found['pattern']!r} is not a pattern: {error}") from None
            rules.append(_Rule(pattern, found["replacement"], found["case"]))
        return cls(tuple(rules) or (_Rule(None, "", ""),))

    def name_of(self, distinguished_name: str) -> str | None:
        """Return the name of the principal, or None if no rule matches."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        return None
