"""How a kernel that TMA brings tiles to is launched and compiled: what Hopper's and Blackwell's steps share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from steps.core.driver import places_like
from steps.core.fused import FusedStep, grid, tiles_visited, too_long_to_simulate
from steps.core.launch import LAST, each_stream, empty_lse, gluon_launcher
from steps.core.order import NATURAL, Order
from steps.core.work import Work, places
from steps.gluon.tensors import contiguous_copy, shapes
from steps.hopper import packed
from tutorial_lib import compiler
from tutorial_lib.problem import Problem, positive

COUNTER = 5  # the position among the arguments of what says how many tiles were taken (``steps.core.order``)


@dataclass(frozen=True, kw_only=True)
class TmaStep(FusedStep):
    """A fused kernel in Gluon that takes Q, K, V and the output as TMA describes them: ``arguments``.

    Its skeleton offers ``kernel``, ``variant`` and ``compute_warps``. A variant has ``tile``, ``rows`` (queries of a
    warpgroup), ``warpgroups``, ``warps`` (that a block begins with), ``ctas`` (blocks that work together; a grid counts
    them as one), ``neighbours`` (blocks of which Triton does not know that they share a tile; a grid counts each),
    ``rewrite`` (whether its PTX is rewritten), ``panel_columns`` (of Q and K, which TMA brings at once),
    ``output_columns``, ``shared`` (the layout of tiles of queries and outputs), ``shared_key``, ``shared_value`` and
    ``lse``.
    """

    @property
    def order(self) -> Order:
        """Which block computes which tiles of queries."""
        return NATURAL

    def order_for(self, problem: Problem) -> Order:
        """The order for ``problem``."""
        return self.order

    def kernel(self, problem: Problem):
        """The function that is launched."""
        raise NotImplementedError

    def compute_warps(self, variant) -> int:
        """Of a block, the warps that compute."""
        raise NotImplementedError

    def shared_clocks(self, problem: Problem) -> float | None:
        """Clocks a K/V tile that shared memory is busy at least; None where that is not known."""
        return None

    def launched(self, problem: Problem) -> Problem:
        """What blocks, and the order of their tiles, follow: where a block has several heads, as if these were one."""
        return problem

    def blocks_an_sm(self, problem: Problem) -> int:
        """Blocks that shall share an SM, and its registers; for each of them blocks stay, where blocks do."""
        return 1

    def most_registers(self, problem: Problem) -> int | None:
        """Of a thread, at most; None: what a block alone may have."""
        return None

    def work(self, problem: Problem, arch: str) -> Work:
        """What a launch has to do."""
        variant, ordered = self.variant(problem, arch), self.order_for(problem).persistent
        held = places(arch, self.blocks_an_sm(problem), together=variant.neighbours * variant.ctas)
        return Work.of_queries(
            self.launched(problem), variant.tile, held, ordered, variant.tile, self.in_tiles(problem).head_dim
        )

    def too_long_on_cpu(self, problem: Problem) -> str | None:
        return too_long_to_simulate(problem, self.variant(problem).tile)

    def entry(self, problem: Problem, arch: str):
        return self.kernel(problem), {"variant": self.variant(problem), "LSE": None}

    def beside_the_kernel(self, problem: Problem, arch: str) -> tuple:
        """The lists that blocks read."""
        order = self.order_for(problem)
        return (order if order.persistent else None,)

    def make_ready(self, problem, q, k, v, out, return_lse=False):
        lse = empty_lse(q) if return_lse else None
        variant = replace(self.variant(problem), lse=return_lse)
        return self.make_kernel_ready(self.kernel(problem), problem, q, k, v, out, variant, lse=lse)

    def make_kernel_ready(self, kernel, problem: Problem, q, k, v, out, *constants, lse=None):
        """As ``make_ready``, for a kernel that is given, and takes ``constants`` behind what all of them take.

        lse: a tensor for the log-sum-exp; with it launches return that, too.
        """
        import torch

        variant = self.variant(problem)
        sign, scale = positive(problem.effective_scale)
        into_out = out is not None and describable(out)

        def fit(q, k, v):
            """The tensors as TMA takes them, or copies."""
            return [x if describable(x) else contiguous_copy(x) for x in (q if sign == 1 else q * sign, k, v)]

        fitted = fit(q, k, v)
        as_they_are = all(a is b for a, b in zip(fitted, (q, k, v)))
        how, launched, an_sm = self.order_for(problem), self.launched(problem), self.blocks_an_sm(problem)
        blocks, order = how.blocks(launched, variant.tile, q.device, an_sm, together=variant.neighbours)
        written = out if into_out else torch.empty(*q.shape[:3], problem.value_dim, dtype=q.dtype, device=q.device)
        passed, place = arguments(*fitted, written, launched, scale, order, variant), places_like(written)
        begins, sinks = (), ()
        if problem.lengths is not None:
            begins = (torch.zeros(len(problem.lengths) + 1, dtype=torch.int32, device=q.device),) * 2
        if problem.sinks:
            sinks = (torch.empty(problem.heads, device=q.device),)
        passed = (*passed, *constants)
        places, last = last_arguments(kernel, problem, lse, *begins, *sinks)
        moved = [len(passed) + place for place in places]
        passed = (*passed, *last)
        moving, lse_place = (0, 1, 2, 3), lse is not None and places_like(lse)
        own = tuple  # what a launch brings along besides the tensors: nothing
        if how.taken:
            moving, counter = (*moving, COUNTER), each_stream(order[1].clone, q.device)

            def own():
                return (counter(),)

        moving = (*moving, *moved)
        grid_of_blocks = (variant.neighbours * blocks, 1, 1)
        asked = {"ctas": variant.ctas, "neighbours": variant.neighbours, "rewrite": variant.rewrite}
        asked["registers"] = self.most_registers(problem)
        run = gluon_launcher(kernel, grid_of_blocks, passed, variant.warps, q.device, moving, self.made_for, **asked)

        def plainly(q, k, v, _):
            """``launch`` where nothing but these is passed, for less of the host."""
            o = place()
            run(q, k, v, o)
            return o

        def launch(q, k, v, out, *more):
            if not as_they_are:
                q, k, v = fit(q, k, v)
            o = out if into_out else place()
            if not lse_place:
                run(q, k, v, o, *own(), *more)
                return o if out is None or o is out else out.copy_(o)
            lse = lse_place()
            run(q, k, v, o, *own(), lse, *more)
            return (o if out is None or o is out else out.copy_(o)), lse

        if as_they_are and out is None and len(moving) == 4:
            return plainly
        return launch

    def compile(self, problem, arch=None):
        arch = arch or self.made_for
        self.refuse(problem, arch)
        return self.compile_kernel(self.kernel(problem), problem, arch, self.variant(problem))

    def compile_kernel(self, kernel, problem: Problem, arch: str, *constants):
        """As ``compile``, for a kernel that is given, and takes ``constants`` behind what is passed to all of them."""
        self.refuse(problem, arch)
        variant, launched = self.variant(problem), self.launched(problem)
        q, k, v, o = (compiler.Placeholder(shape, problem.dtype) for shape in shapes(problem))
        lists = [compiler.Placeholder((1,), "int32")] * 2
        begins = () if problem.lengths is None else lists
        sinks = [compiler.Placeholder((problem.heads,), "float32")] if problem.sinks else ()
        _, last = last_arguments(kernel, problem, None, *begins, *sinks)
        compiled = compiler.compile_gluon(
            kernel,
            (*arguments(q, k, v, o, launched, problem.effective_scale, lists, variant), *constants, *last),
            variant.warps,
            arch,
            variant.tile.scores * (problem.heads // launched.heads) // (variant.ctas * variant.neighbours),
            compute_warps=self.compute_warps(variant),
            ctas=variant.ctas,
            rewrite=variant.rewrite,
            registers=self.most_registers(problem),
        )
        together, order, an_sm = variant.ctas * variant.neighbours, self.order_for(problem), self.blocks_an_sm(problem)
        return replace(
            compiled,
            lists=order.lists(launched, variant.tile, arch, an_sm, together=variant.neighbours),
            blocks=together * order.number(launched, variant.tile, arch, an_sm, together=variant.neighbours),
            kv_tiles=together * tiles_visited(launched, variant.tile),
            compute_groups=variant.warpgroups,
            shared_clocks=self.shared_clocks(problem),
        )


def last_arguments(kernel, problem: Problem, lse, *more) -> tuple[list[int], list]:
    """(places of tensors, arguments) of a kernel's last parameters, by their names: None for what is not asked for.

    more: where packed sequences begin among queries and keys, and the sinks, as far as ``problem`` has these. A kernel
    that was written out has no parameters for what it does not need.
    """
    names = ["LSE"] if lse is not None else []
    names += ["begins_q", "begins_k"] if problem.lengths is not None else []
    names += ["Sinks"] if problem.sinks else []
    tensors = dict(zip(names, more if lse is None else (lse, *more), strict=True))
    given = tensors if problem.lengths is None else tensors | {"sequences": len(problem.lengths)}
    last = [name for name in LAST if name in kernel.arg_names]
    while last and last[-1] not in given:
        last.pop()
    return [last.index(name) for name in names], [given.get(name) for name in last]


def describable(x) -> bool:
    """Whether TMA can describe the tensor: rows of 16-byte pieces, every stride a multiple of 16 bytes."""
    strides = (stride for stride, length in zip(x.stride()[:3], x.shape) if length > 1)
    return all(n > 0 and n * x.itemsize % 16 == 0 for n in strides) and x.stride(3) == 1 and x.data_ptr() % 16 == 0


def described(x, rows: int, columns: int, layout):
    """A tensor [batch, head, row, column] as TMA brings tiles of it, or stores them."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    # A stride along an axis of length 1 is never used, and may be anything but what TMA takes.
    strides = [stride if n > 1 else x.shape[3] for stride, n in zip(x.stride()[:3], x.shape)]
    return TensorDescriptor(x, list(x.shape), [*strides, 1], [1, 1, rows, columns], layout)


def arguments(q, k, v, o, problem: Problem, scale: float, order, variant) -> tuple:
    """What a launch passes to ``fmha`` in front of the variant; the scale is in base 2, as the hardware's is.

    order: order and starts, see ``steps.core.order``; what follows them is not read here.
    """
    describe = described if problem.lengths is None else packed.described
    keys, queries, columns = variant.tile.key, variant.rows, variant.panel_columns
    return (
        describe(q, queries, columns, variant.shared),
        describe(k, keys, columns, variant.shared_key),
        describe(v, keys, variant.value_dim, variant.shared_value),
        describe(o, queries, variant.output_columns, variant.shared),
        *order[:2],
        scale / math.log(2),
        problem.seq_len_kv,
        problem.heads,
        grid(problem, variant.tile)[0],
    )
