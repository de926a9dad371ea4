"""Write the conformance vectors below this folder.

python -m tests.formats.generate

The output is deterministic; a test compares it with the files.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.formats import metadata_objects
from tests.formats.objects import vectors
from tests.formats.stores import stores

HERE = Path(__file__).resolve().parent
FOLDERS = ("objects", "stores", "metadata", "chains")


def contents() -> Iterator[tuple[str, bytes]]:
    """Yield the path below this folder and the bytes of each file."""
    for vector in vectors():
        yield f"objects/{vector.name}.bin", vector.data
        yield f"objects/{vector.name}.json", _json(vector.expected)
    for store in stores():
        for key, data in store.objects.items():
            yield f"stores/{store.name}/bucket/{key}", data
        yield f"stores/{store.name}/expected.json", _json(store.expected)
    for item in metadata_objects.vectors():
        yield f"metadata/{item.name}.bin", item.data
        yield f"metadata/{item.name}.json", _json(item.expected)
    for chain in metadata_objects.chains():
        for key, data in chain.objects.items():
            yield f"chains/{chain.name}/bucket/{key}", data
        yield f"chains/{chain.name}/expected.json", _json(chain.expected)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def main() -> None:
    for folder in FOLDERS:
        shutil.rmtree(HERE / folder, ignore_errors=True)
    for path, data in contents():
        file = HERE / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


if __name__ == "__main__":
    main()
