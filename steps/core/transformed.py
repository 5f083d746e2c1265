"""What torch.func does to tensors and operators: wrapped tensors, and vmap's rule for an operator."""

import torch
from torch._C._functorch import TransformType


def layers(x):
    """A tensor, and those that torch.func has wrapped: of gradients that are wanted of them vmap's own says nothing."""
    yield x
    while isinstance(x, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x):
        yield (x := torch._C._functorch.get_unwrapped(x))


def is_mapped() -> bool:
    """Whether torch.vmap looks on."""
    return any(level.key() == TransformType.Vmap for level in torch._C._functorch.get_interpreter_stack())


def by_batches(number: int):
    """A rule for torch.vmap: what it maps over goes into the batch of the first ``number`` arguments, tensors.

    Where other tensors are among the arguments, which have no batch, each call is one by itself.
    """

    def rule(op):
        def mapped(info, in_dims, *arguments):
            if any(isinstance(x, torch.Tensor) for x in arguments[number:]):
                return one_by_one(op, info.batch_size, in_dims, arguments)
            tensors = [
                x.movedim(axis, 0) if axis is not None else x.expand(info.batch_size, *x.shape)
                for x, axis in zip(arguments[:number], in_dims)
            ]
            found = op(*(x.flatten(0, 1) for x in tensors), *arguments[number:])
            batches = (info.batch_size, -1)
            if isinstance(found, torch.Tensor):
                return found.unflatten(0, batches), 0
            return tuple(x.unflatten(0, batches) for x in found), (0,) * len(found)

        return mapped

    def one_by_one(op, times: int, in_dims, arguments):
        given = [
            [x if axis is None else x.select(axis, n) for x, axis in zip(arguments, in_dims)] for n in range(times)
        ]
        found = [op(*each) for each in given]
        if isinstance(found[0], torch.Tensor):
            return torch.stack(found), 0
        return tuple(map(torch.stack, zip(*found))), (0,) * len(found[0])

    return rule
