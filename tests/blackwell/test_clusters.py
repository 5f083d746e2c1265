"""Steps two_cta_mma and multicast: what TMA brings to whom, and what Triton makes of clusters."""

import re
from contextlib import nullcontext

import pytest
import torch

from steps import Unsupported, get_step
from steps.core.problems import FULL, standard
from steps.inspect import main as inspect
from tests.blackwell.kernels import barrier
from tests.expected import same_compilers
from tests.shapes import problem
from tests.simulator import cluster_kernels as kernels
from tutorial_lib.compiler import compile_gluon
from tutorial_lib.passes import FORWARD
from tutorial_lib.simulator.machine import B200
from tutorial_lib.simulator.run import watched

PAIR, MULTICAST, ALONE = map(get_step, ("two_cta_mma", "multicast", "tensor_memory"))
KEYS = 3 * 128
SHAPE = problem(batch=1, heads=1, seq_len_q=512, seq_len_kv=KEYS, head_dim=128, causal=False)


def brought(step) -> float:
    """Bytes that TMA moved for all blocks of a simulated launch."""
    q, k, v = FORWARD.inputs(SHAPE, 0)
    with watched() as watch:
        step.attention(q, k, v, causal=False)
    [run] = watch.runs
    return run.busy["tma"] * B200.tma


def test_two_blocks_are_brought_the_keys_and_values_once():
    queries, keys = (length * SHAPE.head_dim * 2 for length in (SHAPE.seq_len_q, KEYS))
    there = 2 * queries  # Q comes, and the output leaves
    assert brought(ALONE) == there + 4 * 2 * keys  # four blocks, each all keys and values
    assert brought(PAIR) == brought(MULTICAST) == there + 2 * 2 * keys


@pytest.mark.parametrize("head_dim", [32, 256])
def test_half_of_the_tiles_takes_half_of_the_room(head_dim):
    shape = standard(head_dim=head_dim)
    alone, pair, multicast = (step.compile(shape).shared_bytes for step in (ALONE, PAIR, MULTICAST))
    variant = ALONE.variant(shape)
    tiles = 2 * variant.stages * variant.tile.key * head_dim * 2
    assert alone == multicast and alone - pair == tiles / 2


def test_the_machine_code_has_products_of_both_or_copies_to_both():
    """All products of a kernel, and all copies of keys and values; to a joint barrier each CTA announces its own."""
    pair, multicast = PAIR.compile(FULL), MULTICAST.compile(FULL)
    assert pair.ctas == multicast.ctas == 2 and ALONE.compile(FULL).ctas == 1
    assert set(pair.opcodes("tensor core")) == {"UTCHMMA.2CTA"}
    assert set(multicast.opcodes("tensor core")) == {"UTCHMMA"}
    copies = multicast.opcodes("bulk copy")
    assert copies["UTMALDG"] == 1 and copies["UTMALDG.MULTICAST"] == 3 * 2  # two stages, and the loop's
    # Each CTA announces its own bytes to the first one, which waits; the second one jumps over the wait.
    announced = set(map(int, re.findall(r"expect_tx\.shared::cluster\S* _, \[\S+\], (\d+);", pair.ptx)))
    queries, keys = (length // 2 * FULL.head_dim * 2 for length in (256, 128))
    assert announced == {queries, keys}
    assert pair.ptx.count("bra.uni skipWait") >= 3 and "skipWait" not in multicast.ptx
    # What tells of a product's end arrives in both, and the loop has one barrier of the cluster.
    for compiled, group in ((pair, 2), (multicast, 1)):
        commits = re.findall(r"tcgen05\.commit\.cta_group::(\d)\S*multicast::cluster", compiled.ptx)
        assert commits and set(commits) == {str(group)}
    assert pair.ptx.count("barrier.cluster.arrive.aligned") == 3  # in the loop, and the compiler's at both ends
    assert multicast.ptx.count("barrier.cluster.arrive.aligned") == 1  # the compiler's at the end
    assert (
        pair.ptx.count("barrier.cluster.arrive.relaxed") == multicast.ptx.count("barrier.cluster.arrive.relaxed") == 1
    )


@same_compilers
def test_an_arrival_at_a_joint_barrier_is_one_in_the_first_cta():
    ptx = compile_gluon(kernels.arrives_jointly, (), 4, "sm_100", 1, ctas=2).ptx
    assert "mbarrier.arrive.shared::cluster.b64" in ptx and "mbarrier.arrive.shared::cta" not in ptx
    assert re.findall(r"mbarrier\.init\S* \[\S+\], (\d+);", ptx) == ["2"]  # one of each CTA


@same_compilers
def test_with_roles_all_warps_arrive_at_the_clusters_barrier():
    """It waits for all threads (PTX ISA, "barrier.cluster"); before Triton 3.9 the first role's alone arrived."""
    compiled = compile_gluon(kernels.with_roles, (), 4, "sm_100", 1, ctas=2)
    assert compiled.threads > 4 * 32
    first, *workers = re.split(r"^\s*ret;", compiled.ptx, flags=re.MULTILINE)
    assert first.count("barrier.cluster.arrive") == "".join(workers).count("barrier.cluster.arrive") == 1


def test_an_older_triton_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("steps.blackwell.skeleton.triton_is_new", lambda: False)
    for step in (PAIR, MULTICAST, ALONE):
        with pytest.raises(Unsupported, match=r"needs Triton 3[.]9 or newer, whose Gluon"):
            step.compile(FULL)


def test_a_launch_asks_for_clusters(monkeypatch):
    """On a GPU, which is made up: Triton is told of two CTAs, and of no cluster where a block is alone."""
    from steps.core import launch

    class Stopped(Exception):
        pass

    def stopped(source, how, arch, rewrite):
        assert (arch, how["options"]["num_warps"]) == ("sm_100", 4)
        asked.append(how["options"]["num_ctas"])
        raise Stopped

    asked = []
    monkeypatch.setattr("tutorial_lib.compiler.by_triton", stopped)
    monkeypatch.setattr("tutorial_lib.hardware.architecture_of", lambda device: "sm_100")
    monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
    device = torch.device("cuda", 0)
    for ctas in (2, 1):
        with pytest.raises(Stopped):
            launch.gluon_launcher(barrier, (3, 1, 1), (), 4, device, (), "sm_100", ctas)
    assert asked == [2, 1]


def test_the_lens_tells_of_clusters(capsys):
    assert inspect(["two_cta_mma", "--against", "multicast", "--head-dim", "64"]) == 0
    told = capsys.readouterr().out
    for word in ("blocks per cluster", "UTCHMMA.2CTA", "UTMALDG.MULTICAST", "UTCBAR.2CTA.MULTICAST", "UCGABAR_WAIT"):
        assert word in told
    assert inspect(["tensor_memory", "--head-dim", "64"]) == 0
    assert "blocks per cluster" not in capsys.readouterr().out
