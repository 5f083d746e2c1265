"""Whether a call is of the same kind as another, known in one call into C++."""

from collections.abc import Callable

from steps.core.driver import ALIGNED


def like(*tensors) -> Callable[..., bool]:
    """``is_like(*others)``: whether others have these tensors' type, dispatch keys, dtype, device, shape and strides.

    And whether the same modes are on. It is PyTorch's own guard of compiled programs, one call into C++ where
    ``kind_of`` takes many. What it does not know is never alike: a tensor that comes twice, and what is not
    ``aligned``. Where a version of PyTorch has no such guard, nothing is.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        sizes, strides = [list(x.shape) for x in tensors], [list(x.stride()) for x in tensors]
        guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
        if aligned(*tensors) and guards.check(*tensors):
            return guards.check
    except (ImportError, TypeError, RuntimeError):
        pass
    return never


def never(*_) -> bool:
    return False


def aligned(*tensors) -> bool:
    """Whether all have memory, which begins where TMA takes it."""
    for x in tensors:  # noqa: SIM110  # ``all`` costs the host more
        if (x.data_ptr() or 1) % ALIGNED:
            return False
    return True
