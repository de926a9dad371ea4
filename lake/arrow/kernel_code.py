"""Compile the kernels to object code, and load object code without numba: importing LLVM alone
takes 0.1 s, importing numba 0.5 s.

Source: documentation of `numba.cfunc` and of llvmlite's `ExecutionEngine`.
"""

import ctypes
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import version
from typing import Any, Final, NamedTuple, TypeAlias

import llvmlite.binding as _binding  # type: ignore[import-untyped]

Untyped: TypeAlias = Any
"""Objects of numba and llvmlite, which are untyped."""

_llvm: Untyped = _binding
_ARGUMENTS: Final = {"decode": 5, "walk": 8}
"""The kernels, and the number of arguments of each."""

_CALLED: Final = ("llvm.", "memcpy", "memset", "memmove")
_SPEED: Final = 3


class Kernels(NamedTuple):
    """The kernels of `decode_kernel`, which explains their arguments.

    Invariant: the code calls nothing but LLVM intrinsics and functions such as memcpy, which is
    checked when it is compiled. It therefore cannot raise, and runs without the GIL. There is no
    I/O; `kernel_build` stores the code.
    """

    decode: Callable[[int, int, int, int, int], int]
    walk: Callable[[int, int, int, int, int, int, int, int], int]
    engine: object
    """Owns the memory of the code."""


def machine_hash() -> str:
    """Return an identifier of the CPU and the compiler. The object code depends on these in
    addition to its sources.
    """
    _initialize()
    parts = (
        version("numba"),
        _llvm.__name__ + version("llvmlite"),
        _llvm.get_process_triple(),
        _llvm.get_host_cpu_name(),
        _llvm.get_host_cpu_features().flatten(),
    )
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def compile_kernels() -> bytes:
    """Return the object code for this CPU. This imports numba and takes 8 s of CPU time."""
    import numba

    from penstock.lake.arrow.decode_kernel import KERNELS

    cfunc: Untyped = numba.cfunc
    number: Untyped = numba.types.int64
    module: Untyped = None
    for function in KERNELS:
        count = _ARGUMENTS[function.__name__]
        compiled = cfunc(number(*[number] * count))(function)
        part = _llvm.parse_assembly(compiled.inspect_llvm())
        for item in [*part.functions, *part.global_variables]:
            if item.name == compiled.native_name:
                item.name = function.__name__
            elif not item.is_declaration:
                item.linkage = "internal"
        if module is None:
            module = part
        else:
            module.link_in(part)
    target = _target()
    # Numba wraps functions to report exceptions. LLVM detects that these raise none, and removes
    # the wrapper.
    builder = _llvm.create_pass_builder(
        target, _llvm.create_pipeline_tuning_options(speed_level=_SPEED)
    )
    builder.getModulePassManager().run(module, builder)
    foreign = [
        item.name
        for item in [*module.functions, *module.global_variables]
        if item.is_declaration and not item.name.startswith(_CALLED)
    ]
    if foreign:
        raise RuntimeError(f"compiled code must not call functions, but calls {foreign}")
    code: bytes = target.emit_object(module)
    return code


def load_kernels(code: bytes) -> Kernels:
    """Load object code that `compile_kernels` returned on a machine with the same hash."""
    target = _target()
    engine = _llvm.create_mcjit_compiler(_llvm.parse_assembly(""), target)
    engine.add_object_file(_llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    functions: dict[str, Untyped] = {
        name: ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(
            engine.get_function_address(name)
        )
        for name, count in _ARGUMENTS.items()
    }
    return Kernels(functions["decode"], functions["walk"], engine)


def _initialize() -> None:
    _llvm.initialize_native_target()
    _llvm.initialize_native_asmprinter()


def _target() -> Untyped:
    """Return LLVM's description of this CPU, with numba's settings."""
    _initialize()
    return _llvm.Target.from_triple(_llvm.get_process_triple()).create_target_machine(
        cpu=_llvm.get_host_cpu_name(),
        features=_llvm.get_host_cpu_features().flatten(),
        opt=_SPEED,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )
