"""The picture of a GPU has the figures of the table of architectures."""

import pytest

from tutorial_lib.architectures import ARCHITECTURES, REFERENCE_GPUS
from tutorial_lib.gpu_picture import gpu_picture


@pytest.mark.parametrize("arch", REFERENCE_GPUS)
def test_the_figures_are_those_of_the_architecture(arch):
    gpu, limits = REFERENCE_GPUS[arch], ARCHITECTURES[arch]
    [axes] = gpu_picture(gpu).axes
    written = [text.get_text() for text in axes.texts]
    assert gpu.name in written and f"{gpu.multiprocessors} SMs" in written
    assert len(axes.patches) == 1 + 4 * 6 + 1 + 1 + gpu.multiprocessors + 2
    for figure in (
        "16,384\nregisters",
        f"tensor core:\n{limits.tensor_flops // 4:,} operations",
        f"MUFU:\n{limits.mufu // 4} results",
        f"FMA pipe:\n{limits.fp32 // 4} results",
        f"room for {limits.max_warps // 4} warps\nof 32 lanes",
    ):
        assert written.count(figure) == 4
    assert any(f"{limits.shared_bytes // 1024} KiB" in text for text in written)
