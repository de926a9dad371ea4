"""Load the schemas of Protobuf messages: Base64 descriptors, or text compiled by protoc."""

import base64
import binascii
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped,unused-ignore]
    descriptor_pb2,
    descriptor_pool,
)

from penstock.base.extras import install_hint
from penstock.protocol.registry.model import CannotCheck, SchemaInvalid, brief

_MAIN: Final = "schema.proto"
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_WELL_KNOWN: Final = "google/protobuf/"
_compiling: Final = Lock()
"""Held while protoc runs, because it prints to the stderr of the process, which only one thread at
a time may redirect.
"""


def load_protobuf(text: str, references: Sequence[tuple[str, str]]) -> tuple[Any, Any]:
    """Return the pool and the file of a schema. Raises SchemaInvalid, CannotCheck."""
    files = _decoded(text)
    if files is None:
        files = _compiled(text, references)
    else:
        files = [*_reference_files(references), *files]
    return _loaded(files)


def _decoded(text: str) -> list[Any] | None:
    """Return the files of a descriptor set, or of a single descriptor as stored by registries.
    Return None if this is the text of a .proto file.
    """
    if _BASE64.fullmatch(text) is None:
        return None
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    for kind in (descriptor_pb2.FileDescriptorSet, descriptor_pb2.FileDescriptorProto):
        parsed: Any = kind()
        try:
            parsed.ParseFromString(data)
        except Exception:  # noqa: BLE001, S112 - protobuf has several errors, by implementation
            continue
        size = parsed.ByteSize()
        parsed.DiscardUnknownFields()
        if parsed.ByteSize() == size:
            return list(parsed.file) if kind is descriptor_pb2.FileDescriptorSet else [parsed]
    raise SchemaInvalid("it is Base64, but neither a FileDescriptorSet nor a FileDescriptorProto")


def _reference_files(references: Sequence[tuple[str, str]]) -> list[Any]:
    found: list[Any] = []
    for name, text in references:
        files = _decoded(text) or _compiled(text, references)
        files[-1].name = name  # the name under which other files import it
        found += files
    return found


def _loaded(files: Sequence[Any]) -> tuple[Any, Any]:
    """Add files to a pool, starting with imported ones. The last file contains the messages."""
    pool: Any = descriptor_pool.DescriptorPool()
    by_name = {file.name: file for file in files}
    if not files:
        raise SchemaInvalid("the descriptor set is empty")
    added: set[str] = set()

    def add(name: str, depth: int) -> None:
        if name in added:
            return
        if depth > len(by_name):
            raise SchemaInvalid("its files import each other in a cycle")
        file = by_name.get(name) or _well_known(name)
        for needed in file.dependency:
            add(needed, depth + 1)
        pool.Add(file)
        added.add(name)

    main = files[-1].name
    try:
        for name in by_name:
            add(name, 0)
        return pool, pool.FindFileByName(main)
    except (TypeError, KeyError, ValueError) as error:
        raise SchemaInvalid(f"the descriptors are not valid: {brief(str(error))}") from None


def _well_known(name: str) -> Any:  # noqa: ANN401 - a descriptor
    """Return one of Google's well-known files from the protobuf library. Raises SchemaInvalid."""
    if name.startswith(_WELL_KNOWN) and name.endswith(".proto") and name.count("/") == 2:
        from importlib import import_module

        module_name = name.removesuffix(".proto").replace("/", ".") + "_pb2"
        if re.fullmatch(r"[a-z_.0-9]+", module_name):
            try:
                module: Any = import_module(module_name)
            except ImportError:
                raise SchemaInvalid(f"it imports {brief(name)}, which is missing") from None
            file: Any = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(file)
            return file
    raise SchemaInvalid(f"it imports {brief(name)}, which is missing")


def _compiled(text: str, references: Sequence[tuple[str, str]]) -> list[Any]:
    """Compile the text of a .proto file. Raises SchemaInvalid, CannotCheck."""
    try:
        import grpc_tools  # type: ignore[import-untyped,unused-ignore]
        from grpc_tools import protoc as compiler  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise CannotCheck(
            f"the package {error.name}, which compiles .proto files, is missing:"
            f" {install_hint('schemas')}, or register the schema as a descriptor set in Base64"
            " (protoc --include_imports --descriptor_set_out=FILE)"
        ) from None
    protoc: Any = compiler
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for reference, content in references:
            _write_reference(directory / "in", reference, content)
        (directory / "in").mkdir(exist_ok=True)
        (directory / "in" / _MAIN).write_text(text)
        google = Path(str(grpc_tools.__file__)).parent / "_proto"
        arguments = ["protoc", f"-I{directory / 'in'}", f"-I{google}", "--include_imports"]
        arguments += [f"--descriptor_set_out={directory / 'out'}", _MAIN]
        with (directory / "errors").open("w+") as errors:
            status = _with_stderr(errors.fileno(), lambda: protoc.main(arguments))
            errors.seek(0)
            printed = errors.read(16 * 1024)
        if status != 0:
            raise SchemaInvalid(f"it is not a .proto file: {_first_error(printed, directory)}")
        compiled: Any = descriptor_pb2.FileDescriptorSet()
        compiled.ParseFromString((directory / "out").read_bytes())
        return list(compiled.file)


def _first_error(printed: str, directory: Path) -> str:
    """Return the first error of protoc, without the path of the directory."""
    place = re.compile(rf"(?:.*/)?{re.escape(_MAIN)}:(\d+):(\d+): (.*)")
    lines = [line for line in printed.splitlines() if "warning:" not in line.lower()]
    for line in lines:
        if found := place.fullmatch(line):
            return brief(f"{found[3]} (line {found[1]} column {found[2]})")
    return brief(lines[0].replace(f"{directory / 'in'}{os.sep}", "") if lines else "protoc failed")


def _write_reference(directory: Path, reference: str, content: str) -> None:
    name = PurePosixPath(reference)
    is_inside = bool(name.parts) and not name.is_absolute() and ".." not in name.parts
    if not is_inside or "\0" in reference or reference == _MAIN:
        raise SchemaInvalid(f"the reference {brief(reference)!r} is not a relative path")
    path = directory / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    except (OSError, ValueError) as error:
        raise SchemaInvalid(f"the reference {brief(reference)!r}: {error}") from None


def _with_stderr(number: int, run: Any) -> int:  # noqa: ANN401 - a function
    """Redirect the standard error of the process to a file while the block runs."""
    with _compiling:
        saved = os.dup(2)
        os.dup2(number, 2)
        try:
            return int(run())
        finally:
            os.dup2(saved, 2)
            os.close(saved)
