"""Keys and values in pages: the inputs hold what nobody may read, and the steps that read pages never do."""

import dataclasses
import math
import operator
import secrets

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from steps import PAGED, Unsupported, get_step
from steps.core.problems import PAGED_DECODING
from steps.everyday import decoding
from steps.everyday.paged_decoding import PagedDecodeStep
from steps.reference.peers import PAGED_PEERS
from steps.writing.written import write_step
from tests.checking import asked, assert_right
from tutorial_lib import paging, passes
from tutorial_lib.problem import FP8, Problem
from tutorial_lib.quantize import dequantize
from tutorial_lib.reference import attention_float64, attention_of_last

KERNELS = [step for step in PAGED if isinstance(step, PagedDecodeStep)]


def in_pages(**changes) -> Problem:
    fields = {"batch": 3, "heads": 8, "kv_heads": 2, "seq_len_q": 1, "seq_len_kv": 500, "head_dim": 128}
    return Problem(**fields | {"causal": True, "page_size": 64} | changes)


SHAPES = [
    in_pages(page_size=16),
    in_pages(page_size=32, seq_len_q=5),
    in_pages(),
    in_pages(page_size=256, seq_len_q=16, dtype="bfloat16"),
    in_pages(page_size=8, head_dim=64, seq_len_q=3, causal=False, scale=-0.3),
    in_pages(page_size=16, heads=6, head_dim=256, seq_len_kv=16, seq_len_q=16, dtype="bfloat16"),
    in_pages(batch=1, seq_len_kv=1, head_dim=32),
]
SHAPES += [dataclasses.replace(shape, kv_dtype=FP8) for shape in SHAPES]


# --- the inputs, and what is right ---


@pytest.mark.parametrize("kv_dtype", [None, FP8])
def test_inputs_are_nan_wherever_no_sequence_is(kv_dtype):
    shape = in_pages(page_size=16, kv_dtype=kv_dtype)
    _, k, v, table, lengths, *_ = passes.PAGED.inputs(shape, 1)
    assert lengths.tolist() == list(shape.lengths_in_pages) == [500, 417, 334]
    owned = sum(lengths.tolist())
    for pages in (k, v):
        assert str(pages.dtype) == f"torch.{kv_dtype or shape.dtype}"
        pages = pages.float()
        assert pages.shape[1:] == (16, 2, 128) and pages.isnan().all((2, 3)).sum() == pages.isnan().any((2, 3)).sum()
        assert (~pages.isnan()).all((2, 3)).sum() == owned
    places = [row[: -(-length // 16)].tolist() for row, length in zip(table, lengths.tolist())]
    used = [number for of_one in places for number in of_one]
    assert len(set(used)) == len(used) == len(k) - paging.UNOWNED and used != sorted(used)
    for row, length in zip(table, lengths.tolist()):
        assert (row[-(-length // 16) :] >= len(k)).all(), "no page has the number in an unused place"


def test_what_is_gathered_is_each_sequence_and_right_is_what_attention_gives():
    shape = in_pages(page_size=16, seq_len_q=4, batch=2)
    inputs = passes.PAGED.inputs(shape, secrets.randbits(32))
    (exact,) = passes.PAGED.reference(shape, inputs)
    for b, (q, k, v) in enumerate(paging.sequences(inputs)):
        length = shape.lengths_in_pages[b]
        assert k.shape == v.shape == (1, 2, length, 128) and not k.isnan().any()
        row, n = inputs[3][b], length - 1
        assert torch.equal(k[0, :, n], inputs[1][row[n // 16], n % 16])
        before = torch.cat([torch.zeros(1, 8, length - 4, 128, dtype=q.dtype), q], dim=2)  # q are the last
        expected = attention_float64(before, k, v, True)[:, :, -4:]
        torch.testing.assert_close(exact[b : b + 1], expected)
        torch.testing.assert_close(attention_of_last(q, k, v, False, None), attention_float64(q, k, v))


def test_each_sequence_has_a_scale_for_each_head():
    """Its largest number is that of e4m3, and times the scale it is what was there before, but for rounding."""
    shape = in_pages(page_size=16, kv_dtype=FP8)
    _, k, v, table, lengths, *scales = passes.PAGED.inputs(shape, 7)
    before = passes.PAGED.inputs(dataclasses.replace(shape, kv_dtype=None), 7)
    for pages, scale, whole in zip((k, v), scales, before[1:3], strict=True):
        assert scale.shape == (3, 2) and pages.is_contiguous()
        for b, length in enumerate(lengths.tolist()):
            one = table[b : b + 1], lengths[b : b + 1]
            kept, its = (paging.gather(x, *one)[:, :, :length] for x in (pages, whole))
            assert (kept.float().abs().amax((2, 3)) == 448).all()
            torch.testing.assert_close(dequantize(kept, scale[b : b + 1]), its.float(), rtol=1 / 16, atol=1e-3)


def test_operations_and_bytes_are_those_of_the_sequences_there_are():
    shape = in_pages(seq_len_q=2, batch=2, seq_len_kv=100, page_size=16)
    in_fp8 = dataclasses.replace(shape, kv_dtype=FP8)
    assert shape.lengths_in_pages == (100, 75)
    assert passes.PAGED.operations(shape) == 4 * 8 * 128 * (2 * (100 + 75) - 2)
    queries, keys = 2 * 2 * 8 * 2 * 128 * 2, 2 * 2 * (100 + 75) * 128
    assert passes.PAGED.least_bytes(shape) == queries + 2 * keys + 4 * (7 + 5)
    assert passes.PAGED.least_bytes(in_fp8) == queries + keys + 4 * (7 + 5) + 2 * 4 * (2 * 2)
    for asked_for in (shape, in_fp8):
        q, k_pages, v_pages, _, _, *scales = passes.PAGED.inputs(asked_for, 0)
        tensors = (q, k_pages, v_pages, *scales, q)  # the last for the output
        assert passes.PAGED.tensor_bytes(asked_for) == sum(x.nbytes for x in tensors) + 4 * (7 + 5)


# --- the steps ---


@pytest.mark.parametrize("shape", [in_pages(kv_dtype=FP8), in_pages(kv_dtype=FP8, seq_len_q=5, dtype="bfloat16")])
def test_what_the_format_costs_and_what_is_added_are_told_apart(shape):
    """Pages as they were before they were quantised, and the weights, rounded to 16 bits."""
    seed = secrets.randbits(32)
    inputs = passes.PAGED.inputs(shape, seed)
    (exact,) = passes.PAGED.reference(shape, inputs)
    before = dataclasses.replace(shape, kv_dtype=None)
    (whole,) = passes.PAGED.reference(before, passes.PAGED.inputs(before, seed))
    errors = of_inputs, of_weights = passes.PAGED.errors_by_cause(shape, seed, (exact,), (0.0,))
    assert of_inputs == (whole - exact).abs().max().item() > 10 * of_weights > 0
    out = get_step("paged").paged_attention(*inputs[:5], causal=True, k_scale=inputs[5], v_scale=inputs[6])
    rounded = torch.finfo(out.dtype).eps * exact.abs().max().item()
    assert (out - exact).abs().max().item() < 2 * of_weights + rounded
    told = passes.PAGED.told_by_cause(shape, errors)
    assert f"quantized inputs {of_inputs:.0e}, rounded weights {of_weights:.0e}." in told
    assert passes.PAGED.causes(before) == passes.PAGED.errors_by_cause(before, seed, (whole,), (0.0,)) == ()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda p: p.slug)
@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_a_step_is_right(step, shape):
    assert_right(step, shape)


@pytest.mark.parametrize("multiprocessors", [1, 9, 40])
def test_however_keys_are_split(multiprocessors, monkeypatch):
    """Short sequences have splits without a key."""
    monkeypatch.setattr(decoding, "processors", lambda device: multiprocessors)
    for shape in (
        in_pages(batch=2, kv_heads=8, seq_len_q=2),
        in_pages(batch=2, heads=1, kv_heads=1, page_size=16),
        in_pages(batch=2, heads=4, kv_heads=1, page_size=16, kv_dtype=FP8),
    ):
        assert_right(dataclasses.replace(get_step("paged")), shape)


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("page_size", [16, 64, 256])
@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_what_stands_in_unused_places_of_the_table_changes_nothing(step, page_size, kv_dtype):
    """Here all sequences but the first leave places unused, one of them all of its own."""
    shape = in_pages(page_size=page_size, seq_len_q=2, kv_dtype=kv_dtype)
    q, k, v, table, lengths, *_ = passes.PAGED.inputs(shape, secrets.randbits(32))
    lengths[1:] = torch.tensor([page_size, 0])
    found = []
    for other in (-7, 0, 10**6, 2**31 - 1):
        for row, length in zip(table, lengths.tolist()):
            row[-(-length // page_size) :] = other
        found.append(step.paged_attention(q, k, v, table, lengths, causal=True))
    assert all(torch.equal(o, found[0]) for o in found[1:]) and not found[0].isnan().any()


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_a_query_that_sees_no_key_gets_zeros(step, causal, kv_dtype):
    """A sequence without a key, as servers fill batches up with, and one with fewer keys than queries."""
    q, k, v, table, lengths, *_ = passes.PAGED.inputs(in_pages(seq_len_q=5), secrets.randbits(32))
    if kv_dtype:
        k, v = (x.to(getattr(torch, kv_dtype)) for x in (k, v))
    lengths[1:] = torch.tensor([3, 0])
    o = step.paged_attention(q, k, v, table, lengths, causal=causal)
    hidden = 2 if causal else 0  # of the five queries of the sequence with three keys, those in front of all keys
    assert not o[2].any() and not o[1, :, :hidden].any() and not o.isnan().any()
    assert o[0].any(-1).all() and o[1, :, hidden:].any(-1).all()
    one = (q[1:2, :, hidden:], *(paging.gather(x, table[1:2], lengths[1:2])[:, :, :3] for x in (k, v)))
    exact = attention_of_last(*(x.double() for x in one), causal, None)
    torch.testing.assert_close(o[1:2, :, hidden:].double(), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_a_query_that_is_nan_gets_nan_and_no_other(step, kv_dtype):
    q, k, v, table, lengths, *_ = passes.PAGED.inputs(in_pages(seq_len_q=2, kv_dtype=kv_dtype), 1)
    q[1, 3, 1, 5] = math.nan
    o = step.paged_attention(q, k, v, table, lengths, causal=True)
    assert o[1, 3, 1].isnan().all() and o.isnan().any(-1).sum() == 1


@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_torch_compile_runs_the_call_and_traces_nothing_of_it(step):
    inputs, traced = passes.PAGED.inputs(in_pages(seq_len_kv=64, head_dim=32), 1), []

    def backend(graph, _):
        traced.extend(node.target for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    def doubled(*tensors):
        return step.paged_attention(*tensors, causal=True) * 2

    expected = doubled(*inputs)
    assert torch.equal(torch.compile(doubled, backend=backend)(*inputs), expected) and traced == [operator.mul]
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in inputs]
        with pytest.raises(ValueError, match=r"q must be .* got a FakeTensor \(steps.attention, which takes no pages"):
            step.paged_attention(*fake)


@pytest.mark.parametrize("page_size", [16, 64, 256])
def test_pages_in_fp8_give_what_the_same_keys_give_without_pages(page_size):
    """Scales are those of their sequence and head, and of large scores, too, no more is lost than step fp8_kv loses."""
    shape = in_pages(page_size=page_size, seq_len_q=2, causal=False, dtype="bfloat16", kv_dtype=FP8)
    q, k, v, table, lengths, *_ = passes.PAGED.inputs(shape, secrets.randbits(32))
    scales = {name: torch.empty(3, 2).uniform_(0.01, 0.1) for name in ("k_scale", "v_scale")}
    o = get_step("paged").paged_attention(q, k, v, table, lengths, **scales)
    for b, length in enumerate(lengths.tolist()):
        one = slice(b, b + 1)
        keys, values = (paging.gather(x, table[one], lengths[one])[:, :, :length] for x in (k, v))
        whole = get_step("fp8_kv").attention(q[one], keys, values, **{name: x[one] for name, x in scales.items()})
        largest = values.float().abs().max().item() * scales["v_scale"][one].max().item()
        # A place of bfloat16; and both round weights, each in other tiles, to half a place.
        torch.testing.assert_close(o[one], whole, rtol=2**-7, atol=2**-8 * largest)


@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_scales_that_are_not_given_are_ones(step):
    q, k, v, table, lengths, k_scale, v_scale = passes.PAGED.inputs(in_pages(kv_dtype=FP8), 1)
    one = torch.ones(3, 2)
    for given in ({}, {"k_scale": k_scale}, {"v_scale": v_scale}):
        found = step.paged_attention(q, k, v, table, lengths, scale=0.001, **given)
        both = {"k_scale": one, "v_scale": one, **given}
        assert torch.equal(found, step.paged_attention(q, k, v, table, lengths, scale=0.001, **both))
        halved = {**both, "v_scale": both["v_scale"] / 2}
        assert torch.equal(found, 2 * step.paged_attention(q, k, v, table, lengths, scale=0.001, **halved))


def test_the_offset_keeps_many_small_weights_of_pages_in_fp8():
    """One key has almost all weight and no value. The weights of 4000 others are below 2^-25, and add up."""
    q, k, v = torch.zeros(1, 1, 1, 64).bfloat16(), torch.zeros(63, 64, 1, 64), torch.ones(63, 64, 1, 64)
    q[..., 0], k[0, 7, 0, 0], v[0, 7] = 1.0, 18.0, 0.0
    table, lengths = torch.arange(63, dtype=torch.int32)[None], torch.tensor([4001], dtype=torch.int32)
    found = get_step("paged").paged_attention(q, in_e4m3(k), in_e4m3(v), table, lengths, scale=1.0)
    assert found.unique().item() == pytest.approx(4000 / (4000 + math.exp(18)), rel=0.01)


def test_pages_in_fp8_may_lie_anywhere():
    step, shape = get_step("paged"), in_pages(kv_dtype=FP8, head_dim=64)
    q, k, v, *more = passes.PAGED.inputs(shape, 1)
    expected = step.paged_attention(q, k, v, *more[:2], k_scale=more[2], v_scale=more[3])
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    odd = [torch.empty(*x.shape[:3], 77, dtype=x.dtype)[..., 5:69].copy_(x) for x in (k, v)]
    for pages in (apart, odd):
        found = step.paged_attention(q, *pages, *more[:2], k_scale=more[2], v_scale=more[3])
        assert torch.equal(found, expected)


def test_whoever_reads_what_is_no_sequences_is_found():
    """The check fails for one key too many: a length beyond the sequence's end."""
    shape = in_pages()

    class Greedy:
        direction = "paged"

        def paged_attention(self, q, k, v, table, lengths, **more):
            return get_step("gathered").paged_attention(q, k, v, table, lengths + 1, **more)

    assert not asked("paged", shape).check(Greedy()).correct


def test_a_kernel_written_out_is_the_kernel():
    step, shape = get_step("paged"), in_pages(page_size=16)
    for change in ({}, {"page_size": 64}, {"kv_dtype": FP8}):
        written = write_step(step, dataclasses.replace(shape, **change), "cpu")
        assert "variant" not in written.text and written.compile is not None
        assert_right(written, written.written_for)


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("page_size", [16, 32, 64, 256])
def test_pages_are_copied_by_tma_whatever_their_size(page_size, kv_dtype):
    """And a tile of small pages takes more copies and more loads of numbers than one that is a part of a page."""
    step, shape = get_step("paged"), dataclasses.replace(PAGED_DECODING, page_size=256, kv_dtype=kv_dtype)
    own = step.compile(dataclasses.replace(shape, page_size=page_size)).as_dict()["hot_loop"]
    assert own["bulk copy"] and not own["spill"]
    if page_size < step.key(shape):
        whole = step.compile(shape).as_dict()["hot_loop"]
        assert own["bulk copy"] > whole["bulk copy"] and own["global memory"] > whole["global memory"]


@pytest.mark.parametrize(("head_dim", "page_size"), [(64, 256), (128, 16), (128, 64), (128, 256), (256, 64)])
def test_a_tile_with_as_many_rows_as_it_may_have_fits_on_an_sm(head_dim, page_size):
    shape = dataclasses.replace(PAGED_DECODING, head_dim=head_dim, page_size=page_size, seq_len_q=16)
    made = get_step("paged").compile(shape).as_dict()
    assert made["blocks_per_sm"] == 1 and not made["spilled_bytes"]


# --- bad input ---


def in_e4m3(x):
    return x.to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda x: x[0]}, r"q must have 4 dimensions \[batch, heads, seq_len, head_dim\]"),
        ({"q": lambda x: x.float()}, "q must be float16 or bfloat16"),
        ({"k_pages": lambda x: x[..., :64]}, r"k_pages must have shape \(.*, 64, 2, 128\)"),
        ({"v_pages": lambda x: x[:3]}, "v_pages must have shape"),
        ({"k_pages": lambda x: x[:0]}, "k_pages must hold at least one page"),
        ({"out": lambda x: [1]}, "out must be a tensor with shape"),
        ({"page_table": lambda x: x.long()}, r"page_table must have shape \(3, 8\), torch.int32 on cpu, got .*int64"),
        ({"page_table": lambda x: x[0]}, r"page_table must have shape \(3, pages\)"),
        ({"lengths": lambda x: x[:2]}, r"lengths must have shape \(3\)"),
        ({"lengths": lambda x: 5}, "lengths must have shape .* got int"),
        ({"lengths": lambda x: x + 13}, "lengths must be from 0 to 512, as page_table has room for, got 513 at 0"),
        ({"lengths": lambda x: x - 500}, "lengths must be from 0 to 512, .* got -83 at 1"),
        ({"page_table": lambda x: 0 * x - 1}, "page_table must hold numbers from 0 to 24 where lengths reach, got -1"),
        ({"page_table": lambda x: 0 * x + 25}, "page_table must hold numbers .* got 25"),
        ({"out": lambda x: torch.empty(3)}, "out must be a tensor with shape"),
        ({"v_pages": in_e4m3}, r"v_pages must have shape \(.*\), torch.float16 on cpu, got .*float8_e4m3fn"),
        ({"k_pages": in_e4m3}, r"v_pages must have shape \(.*\), torch.float8_e4m3fn on cpu, got .*float16"),
        ({"k_scale": lambda x: torch.ones(3, 2)}, "k_scale must be None for pages in torch.float16, which have no"),
        (
            {"k_pages": in_e4m3, "v_pages": in_e4m3, "v_scale": lambda x: torch.ones(3)},
            r"v_scale must be a contiguous tensor \[3, 2\] \[batch, kv_heads\], float32 on cpu, got \(3,\)",
        ),
        ({"k_pages": in_e4m3, "v_pages": in_e4m3, "k_scale": lambda x: 0.5}, "k_scale must be .* got float"),
        ({"k_pages": in_e4m3, "v_pages": in_e4m3, "q": lambda x: 5}, "q must be a torch.Tensor, got int"),
    ],
)
@pytest.mark.parametrize("step", PAGED, ids=lambda s: s.name)
def test_bad_arguments_are_named(step, change, message):
    names = ("q", "k_pages", "v_pages", "page_table", "lengths")
    arguments = dict(zip(names, passes.PAGED.inputs(in_pages(), 0), strict=True))
    arguments |= dict.fromkeys(("out", "k_scale", "v_scale"))
    arguments |= {name: spoil(arguments[name]) for name, spoil in change.items()}
    with pytest.raises(ValueError, match=message):
        step.paged_attention(**arguments)


def test_pages_that_are_no_power_of_two_and_calls_of_the_other_kind_are_refused():
    step = get_step("paged")
    assert step.unsupported(in_pages(page_size=24), "sm_90") == "page_size must be a power of two, at least 8, got 24"
    assert "made of numbers in fp8" in step.unsupported(in_pages(kv_dtype=FP8), "sm_80")
    assert step.unsupported(in_pages(), "sm_80") is None is step.unsupported(in_pages(kv_dtype=FP8), "sm_100")
    [peer] = PAGED_PEERS
    assert peer.takes == ("page_size",), "flash-attn-4 multiplies by keys in the queries' dtype"
    with pytest.raises(Unsupported, match="step 902 paged reads pages: call its paged_attention"):
        step.attention(1, 2, 3)
    with pytest.raises(Unsupported, match="reads keys and values from pages: ask for a page_size"):
        step.compile(dataclasses.replace(in_pages(), page_size=None))
    with pytest.raises(ValueError, match="page_size must be a whole number of at least 1, got 0"):
        in_pages(page_size=0)
    with pytest.raises(ValueError, match="page_size goes with no other feature, got window, too"):
        in_pages(window=3)
    with pytest.raises(ValueError, match="seq_len_q must be at most seq_len_kv"):
        in_pages(seq_len_q=600)
