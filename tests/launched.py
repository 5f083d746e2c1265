"""By which keys compilers keep what is compiled ahead, and what a launch looks for, up to a CUDA driver that is none.

For a process of its own (``tutorial_lib.worker``): cuTile never lets go of its driver. Every call of this driver
succeeds, and nothing runs. Tensors are on the CPU, and say that they are not.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from contextlib import suppress
from types import ModuleType

ANSWERS = {  # what the driver writes where its nth argument points to; of all else it writes nothing
    "cuDriverGetVersion": (0, 13020),
    "cuDeviceGetCount": (0, 1),
    "cuDeviceGet": (0, 0),
    "cuCtxGetDevice": (0, 0),
    "cuCtxGetCurrent": (0, 1),
    "cuDevicePrimaryCtxRetain": (0, 1),
    "cuStreamGetCtx": (1, 1),
    "cuStreamGetId": (1, 1),
    "cuStreamIsCapturing": (1, 0),
    "cuCtxGetId": (1, 1),
}
LONG = ("cuCtxGetCurrent", "cuDevicePrimaryCtxRetain", "cuStreamGetCtx", "cuStreamGetId", "cuCtxGetId")  # 8 bytes
CAPABILITY = {75: 9, 76: 0}  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
FORMATS = {"float16": "<f2", "float32": "<f4", "int32": "<i4"}


class Known(Exception):
    """What a compiler would look for is known."""


class Keys:
    """``both(name, problem)``: the keys of what a step compiles ahead, and of all that was launched so far.

    cuTile asks for a kernel once in a process.
    """

    def __init__(self):
        self.found: list[str] = []
        self.launched: set[str] = set()
        self._functions = []  # which must outlive the addresses that cuTile keeps
        self._replace_triton()
        self._replace_cutile()

    def both(self, name: str, problem) -> tuple[set[str], set[str]]:
        import torch

        from steps import get_step
        from steps.core import launch
        from tutorial_lib import hardware
        from tutorial_lib.passes import pass_of

        step, self.found = get_step(name), []
        with suppress(RuntimeError):  # as Triton's compiler was stopped
            step.compile(problem, step.made_for)
        ahead, self.found = set(self.found), []
        hardware.architecture_of = lambda device: step.made_for
        launch._loaded.clear()
        kind = pass_of(step)
        kind.call(step, problem, kind.inputs(problem, 0, torch.device("cpu")))
        self.launched.update(self.found)
        return ahead, self.launched

    def _replace_triton(self) -> None:
        import triton
        from triton._C.libtriton import get_cache_invalidating_env_vars
        from triton.compiler.compiler import make_backend
        from triton.runtime.cache import get_cache_key

        from steps.backward_blackwell import skeleton as blackwell
        from steps.backward_hopper import launching as gradients
        from steps.backward_hopper import skeleton as backward
        from steps.core import launch
        from steps.fp8 import skeleton as fp8
        from steps.gluon import launching as pointers
        from steps.hopper import launching as tma

        def compiled(source, target, options):
            from triton import knobs

            backend = make_backend(target)
            key = get_cache_key(source, backend, backend.parse_options(options), get_cache_invalidating_env_vars())
            added = knobs.runtime.add_stages_inspection_hook
            self.found.append(key + (added()[0] if added else ""))
            raise Known

        def launcher(kernel, blocks, arguments, warps, device, *_, ctas=1, rewrite=False, registers=None, **__):
            with suppress(RuntimeError):
                launch._compiled(kernel, arguments, warps, device, ctas, rewrite, registers)
            return lambda *tensors: None

        triton.compile = compiled
        for module in (blackwell, gradients, backward, fp8, pointers, tma):
            if hasattr(module, "gluon_launcher"):
                module.gluon_launcher = launcher

    def _replace_cutile(self) -> None:
        import cuda.tile as ct
        import cutile_cache._cache
        from cuda.tile import _compile

        from steps.backward_cutile import skeleton as gradients
        from steps.cutile import launching, skeleton
        from steps.everyday import decoding, paged_decoding
        from tutorial_lib import compiler
        from tutorial_lib.architectures import REFERENCE_GPUS
        from tutorial_lib.compiled import Compiled, Figures, Texts

        def made(bytecode, version, arch, scores_per_tile):
            compiler._keep_for_launches(bytecode, arch, b"code")
            return Compiled(arch, version, 128, 128, 0, 0, 0, 0, Figures({"": "code"}), Texts(""))

        def found(folder, key):
            self.found.append(key)
            return b"code"

        def launch(part, arguments):
            kernel = launching.compiled_when_launched(part.function, part.shape)
            ct.launch(1, part.blocks, kernel, _on_gpu(arguments))

        compiler._compile, compiler._kept = made, lambda identity, make: make()
        cutile_cache._cache.cache_store = lambda folder, key, code: self.found.append(key)
        cutile_cache._cache.evict_lru = lambda folder, limit: None
        _compile.cache_lookup, launching._interpret = found, launch
        for module in (decoding, gradients, paged_decoding, skeleton):
            module.target_of = lambda device: "sm_90"  # whose tiles others than the interpreter's are
        decoding.processors = lambda device: REFERENCE_GPUS["sm_90"].multiprocessors
        module = ModuleType("cuda.tile._load_libcuda")
        finds = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))(self._find)
        self._functions.append(finds)
        module.cuGetProcAddress_v2_ptrptr = ctypes.addressof(finds)
        sys.modules[module.__name__] = module

    def _find(self, name: bytes, place) -> int:
        """What cuGetProcAddress does."""
        function = FUNCTION(self._answer(name.decode()))
        self._functions.append(function)
        place[0] = ctypes.cast(function, ctypes.c_void_p).value
        return 0

    @staticmethod
    def _answer(name: str):
        size = ctypes.c_uint64 if name in LONG else ctypes.c_uint32
        nth, value = ANSWERS.get(name, (None, None))

        def answer(*given):
            if nth is not None:
                size.from_address(given[nth]).value = value
            elif name == "cuDeviceGetAttribute":
                ctypes.c_uint32.from_address(given[0]).value = CAPABILITY.get(given[1], 1)
            elif name == "cuPointerGetAttribute":  # the context, the kind of memory, or the device's number
                ctypes.c_uint32.from_address(given[0]).value = {1: 1, 2: 2}.get(given[1], 0)
            return 0

        return answer


def _on_gpu(x):
    """A tensor as one on a GPU would be seen, alone or in tuples."""
    import torch

    if isinstance(x, tuple):
        return tuple(map(_on_gpu, x))
    if not isinstance(x, torch.Tensor):
        return x
    told = {
        "shape": tuple(x.shape),
        "typestr": FORMATS[str(x.dtype).removeprefix("torch.")],
        "data": (x.data_ptr(), False),
        "strides": tuple(n * x.itemsize for n in x.stride()),
        "version": 3,
    }
    return dataclasses.make_dataclass("OnGpu", ["__cuda_array_interface__"])(told)
