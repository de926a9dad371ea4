"""Generate `docs/reference/doctor.md` from the findings. Pure."""

import re
import sys
from typing import Final

from penstock.deploy.doctor.findings import CHECKS, Kind

_FIELD: Final = re.compile(r"\{(\w+)(?::(?:[^{}|]*\|([^{}]*)|[^{}]*))?\}")

_HEAD: Final = """# Doctor

<!-- Written by `python -m tools.reference.doctor`; do not edit. -->

`penstock doctor` checks a deployment and reports each problem with a solution.

```console
$ penstock doctor --controller HOST:PORT --store s3://BUCKET/PREFIX     # all checks
$ penstock doctor                                                       # the running `penstock dev`
$ penstock doctor --store s3://BUCKET/PREFIX                            # only the store, without a running cluster
$ penstock doctor ... --json                                            # for programs
$ penstock doctor ... --records 10000                                   # also read the newest records
$ penstock doctor ... --delete-orphans --older-than 1d                  # also delete orphans
```

It is read-only, except for small objects below `probe/` that it writes and deletes, and for `--delete-orphans`.
Every check has a deadline, and a failed check does not affect the others.
It costs one LIST per 1,000 objects in the bucket, about 20 PUTs and 30 GETs; `--no-objects` skips the listing.
`--records N` also reads and decodes the newest N offsets of each partition.

| exit code | meaning |
|---|---|
| 0 | no problem was found |
| 1 | a finding of level `fail` or `warn`, which needs action; a `hint` does not count |
| 2 | no such finding, but a check could not be made, or the command was called wrongly |

`--accept CODE` (repeatable) ignores a finding.

**Deleting orphans** asks for confirmation (or takes `--yes`) and needs the controllers.
It reads the metadata again after the listing and before every 1,000 keys.
It deletes objects below `data/`, slots of ended WALs below their ends, and old probes.
It never deletes a fence, a slot behind one, or a WAL that the metadata do not know.
Orphans come from PUTs of a writer that was stopped for hours, which arrive after the object has expired, and from uploads of a broker that outlived `penstock controller recover`.

**With the store alone** the doctor reads the newest snapshot and the backup behind it.
Everything that they refer to must be in the store, so the doctor also finds lost data.
Controllers, versions and listeners are not checked then.
"""


def as_markdown() -> str:
    parts = [_HEAD]
    for check in CHECKS:
        rows = "\n".join(_row(kind) for kind in check.kinds)
        parts.append(
            f"## {check.name}\n{check.about}\n\n| code | level | finding | solution |\n|---|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def _row(kind: Kind) -> str:
    return f"| `{kind.code}` | {kind.level.value} | {_with_placeholders(kind.sentence)} | {_with_placeholders(kind.mend)} |"


def _with_placeholders(template: str) -> str:
    """Replace {fields} by *fields*, and {fields:one|several} by several."""
    return (
        _FIELD.sub(
            lambda found: found[2] or f"*{found[1]}*",
            template.replace("{{", "\0").replace("}}", "\1"),
        )
        .replace("\0", "{")
        .replace("\1", "}")
        .replace("|", "\\|")
    )


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
