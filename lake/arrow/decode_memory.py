"""Address memory by integers in compiled code, because passing arrays takes 0.7 us per record.

Nothing here checks bounds: callers compare lengths and capacities first. Addresses are int64.
Functions with an index count elements of their own width and require an aligned address. Source:
numba's `cgutils.raw_memcpy`, LLVM's `load` and `store`.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import llvmlite.ir  # type: ignore[import-untyped]
import numba
import numba.core.cgutils
import numba.extending

Untyped: TypeAlias = Any
"""Objects of numba and llvmlite, which are untyped."""

_ir: Untyped = llvmlite.ir
_types: Untyped = numba.types
_cgutils: Untyped = numba.core.cgutils
_intrinsic: Untyped = numba.extending.intrinsic

STEP_BYTES: Final = 32


def _pointer(builder: Untyped, address: Untyped, bits: int, index: Untyped = None) -> Untyped:
    pointer = builder.inttoptr(address, _ir.IntType(bits).as_pointer())
    return pointer if index is None else builder.gep(pointer, [index])


def _widened(builder: Untyped, value: Untyped, bits: int) -> Untyped:
    return value if bits == 64 else builder.zext(value, _ir.IntType(64))


def _load(bits: int) -> Untyped:
    def load(typing: Untyped, address: Untyped, index: Untyped) -> Untyped:
        def generate(
            context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped
        ) -> Untyped:
            return _widened(
                builder, builder.load(_pointer(builder, arguments[0], bits, arguments[1])), bits
            )

        return _types.int64(_types.int64, _types.int64), generate

    return _intrinsic(load)


def _load_anywhere(bits: int) -> Untyped:
    def load(typing: Untyped, address: Untyped) -> Untyped:
        def generate(
            context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped
        ) -> Untyped:
            return _widened(
                builder, builder.load(_pointer(builder, arguments[0], bits), align=1), bits
            )

        return _types.int64(_types.int64), generate

    return _intrinsic(load)


def _store(bits: int) -> Untyped:
    def store(typing: Untyped, address: Untyped, index: Untyped, value: Untyped) -> Untyped:
        def generate(
            context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped
        ) -> Untyped:
            narrow = arguments[2] if bits == 64 else builder.trunc(arguments[2], _ir.IntType(bits))
            builder.store(narrow, _pointer(builder, arguments[0], bits, arguments[1]))
            return context.get_dummy_value()

        return _types.void(_types.int64, _types.int64, _types.int64), generate

    return _intrinsic(store)


def _memcpy(typing: Untyped, destination: Untyped, source: Untyped, length: Untyped) -> Untyped:
    def generate(
        context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped
    ) -> Untyped:
        into, from_ = _pointer(builder, arguments[0], 8), _pointer(builder, arguments[1], 8)
        _cgutils.raw_memcpy(builder, into, from_, arguments[2], 1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64, _types.int64), generate


def _step(typing: Untyped, destination: Untyped, source: Untyped) -> Untyped:
    def generate(
        context: Untyped, builder: Untyped, signature: Untyped, arguments: Untyped
    ) -> Untyped:
        kind = _ir.VectorType(_ir.IntType(8), STEP_BYTES)
        from_ = builder.inttoptr(arguments[1], kind.as_pointer())
        builder.store(
            builder.load(from_, align=1), builder.inttoptr(arguments[0], kind.as_pointer()), align=1
        )
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64), generate


u8: Callable[[int, int], int] = _load(8)
get: Callable[[int, int], int] = _load(64)
"""Load a signed 64-bit integer."""
u32_at: Callable[[int], int] = _load_anywhere(32)
i64_at: Callable[[int], int] = _load_anywhere(64)
set8: Callable[[int, int, int], None] = _store(8)
set32: Callable[[int, int, int], None] = _store(32)
set64: Callable[[int, int, int], None] = _store(64)
copy: Callable[[int, int, int], None] = _intrinsic(_memcpy)
"""Copy (destination, source, byte count). A loop over bytes takes eight times as long, because LLVM
does not recognize a memcpy in it.
"""
copy_step: Callable[[int, int], None] = _intrinsic(_step)
"""Copy `STEP_BYTES` (destination, source) with one load and one store."""
