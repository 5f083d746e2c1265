"""Gives Gluon the names of Triton 3.9 where an older one, such as Triton 3.6 of PyTorch 2.11, has others."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language import _semantic
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

NAMES = (
    (gl, "barrier", "thread_barrier"),
    (gl.shared_memory_descriptor, "reinterpret", "_reinterpret"),
    (async_copy, "async_load", "async_copy_global_to_shared"),
    (tma, "async_load", "async_copy_global_to_shared"),
    (tma, "async_store", "async_copy_shared_to_global"),
)

for place, name, older in NAMES:
    if not hasattr(place, name):
        setattr(place, name, getattr(place, older))

# Once Triton has inferred a layout, it holds Gluon's classes of layouts, and all that these lead to, for good. This
# class keeps the module alive until Python ends and empties it; else nanobind reports as leaked what it names.
gl.DistributedLinearLayout.kept_alive = _semantic
