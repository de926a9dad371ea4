"""The first task on a machine does not wait for the compiler, and returns the same rows."""

import os
import subprocess
import sys
from pathlib import Path

from penstock.lake.arrow import kernel_cache

ROOT = Path(__file__).resolve().parents[4]

BEGIN = """
import fcntl, sys
from penstock.lake.arrow import kernel_build, kernel_cache
place = kernel_cache.cache_directory()
"""
DECODE = """
from penstock.protocol.batch.records import Record, encode_batch
from penstock.lake.arrow.decode import Decoder, Place
records = [Record(i, 1_000 + i, b"k%d" % i, b"v" * i) for i in range(50)]
block = bytes(encode_batch(records, base_offset=0))

def decoded():
    decoder = Decoder()
    batches = [*decoder.decode(block, Place("data/x", "topic", 3)), *decoder.flush()]
    return type(decoder._rows).__name__, [row for batch in batches for row in batch.to_pylist()]

first, rows = decoded()
assert kernel_build._Build.process.wait(500) == 0
assert "numba" not in sys.modules, "nothing was compiled here"
second, same = decoded()
assert "numba" not in sys.modules, "loading needs no numba"
print(first, second, rows == same, len(rows))
"""
SIZES = """
from penstock.lake.arrow.decode import Decoder
sizes = [1_000, kernel_build._WORTHWHILE_BYTES // 2, kernel_build._WORTHWHILE_BYTES // 2, 0]
print(*(type(Decoder(size_bytes=size)._rows).__name__ for size in sizes))
"""


def run(code: str, place: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_first_task_uses_the_numpy_decoder_while_kernels_are_compiled(tmp_path: Path) -> None:
    assert run(DECODE, tmp_path) == "NumpyRows CompiledRows True 50"
    assert run("print(kernel_build.are_at_hand())", tmp_path) == "True", (
        "another process finds them"
    )
    assert run(SIZES, tmp_path).split() == [
        "NumpyRows",
        "NumpyRows",
        "CompiledRows",
        "CompiledRows",
    ], "they are loaded after much decoding, and earlier calls count"


def test_one_process_compiles_at_a_time(tmp_path: Path) -> None:
    held = 'lock = open(place / "compiling", "w"); fcntl.flock(lock, fcntl.LOCK_EX)\n'
    assert (
        run(held + "print(kernel_build.are_at_hand(), kernel_build._Build.process)", tmp_path)
        == "False None"
    )


def test_kernels_that_cannot_be_compiled_in_the_background_are_compiled_directly(
    tmp_path: Path,
) -> None:
    looks = (
        "print(kernel_build.are_at_hand())\n"
        "kernel_build._Build.process and kernel_build._Build.process.wait(100)\n"
    )
    assert run('sys.executable = "/bin/false"\n' + looks * 2, tmp_path).split() == ["False", "True"]
    assert run('sys.executable = "/nonexistent"\n' + looks, tmp_path).split() == ["True"]
    (tmp_path / "file").write_text("")
    assert run("print(place, kernel_build.are_at_hand())", tmp_path / "file").split() == [
        "None",
        "True",
    ]


def test_damaged_cached_kernels_are_not_loaded(tmp_path: Path) -> None:
    place = tmp_path / "kernels.o"
    assert kernel_cache.read_code(place) is None
    kernel_cache.write_code(place, b"code" * 100)
    assert kernel_cache.read_code(place) == b"code" * 100
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    whole = place.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], b"x" + whole[1:]):
        place.write_bytes(damaged)
        assert kernel_cache.read_code(place) is None
    kernel_cache.write_code(tmp_path / "missing" / "kernels.o", b"code")
