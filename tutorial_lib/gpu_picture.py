"""How a GPU is built: its units and memories, drawn from the table of architectures."""

from __future__ import annotations

from tutorial_lib.architectures import ARCHITECTURES, ISSUE, KIB, REGISTERS, Gpu
from tutorial_lib.pictures import SKY
from tutorial_lib.plots import BLUE, GREY, figure_with_axes

SHARED_BYTES_A_CLOCK = 128  # of an SM: 32 banks of 4 bytes, as in tutorial_lib.limits


def gpu_picture(gpu: Gpu):
    """One SM with its four quarters, beside the GPU that it is a part of."""
    from matplotlib.patches import Rectangle

    limits = ARCHITECTURES[gpu.arch]
    figure, axes = figure_with_axes(7.4, 4.5)

    def box(x, y, width, height, text="", colour="white", hatch="", size=7.5, place="center"):
        axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, hatch=hatch, edgecolor=BLUE, linewidth=0.9))
        at = y + height / 2 if place == "center" else y + height - 0.12
        axes.text(x + width / 2, at, text, ha="center", va=place, fontsize=size, linespacing=1.25)

    # One SM.
    box(0, 0.35, 9.2, 8.1, "one SM (streaming multiprocessor)", "#f4f4f4", size=9, place="top")
    parts = (  # of a quarter, from top to bottom: height, text, colour
        (0.85, f"scheduler:\n{ISSUE // 4} warp instruction", "white"),
        (1.0, f"room for {limits.max_warps // 4} warps\nof 32 lanes", "white"),
        (1.0, f"{REGISTERS // 4:,}\nregisters", SKY),
        (1.0, f"tensor core:\n{limits.tensor_flops // 4:,} operations", "#dddddd"),
        (1.0, f"FMA pipe:\n{limits.fp32 // 4} results", "#dddddd"),
        (1.0, f"MUFU:\n{limits.mufu // 4} results", "#dddddd"),
    )
    for quarter in range(4):
        x, y = 0.2 + 2.23 * quarter, 7.85
        for height, text, colour in parts:
            y -= height
            box(x, y, 2.1, height - 0.08, text, colour)
    shared = f"shared memory, {limits.shared_bytes // KIB} KiB: {SHARED_BYTES_A_CLOCK} bytes"
    box(0.2, 0.55, 8.79, 1.15, f"{shared}\n(of all threads of a block)", SKY, size=8)
    # The whole GPU.
    box(10, 0.35, 4.6, 8.1, gpu.name, "#f4f4f4", size=9, place="top")
    columns, rows = 12, -(-gpu.multiprocessors // 12)
    for n in range(gpu.multiprocessors):
        x, y = 10.25 + (n % columns) * 4.1 / columns, 7.55 - (n // columns + 1) * 3.3 / rows
        box(x, y, 4.1 / columns - 0.07, 3.3 / rows - 0.07, colour="#dddddd")
    axes.text(12.3, 4.0, f"{gpu.multiprocessors} SMs", ha="center", va="center", fontsize=8)
    box(10.25, 2.55, 4.1, 1.15, "L2 cache\n(of all SMs)", SKY, size=8)
    each = gpu.bandwidth / gpu.clock / gpu.multiprocessors
    kind = " (HBM)" if gpu.arch in ("sm_80", "sm_90", "sm_100") else ""  # the others have GDDR
    memory = f"device memory{kind}\n{gpu.bandwidth / 1e12:.3g} TB/s:\n{each:.0f} bytes for each SM"
    box(10.25, 0.55, 4.1, 1.6, memory, "white", hatch="", size=8)
    axes.annotate("", (12.3, 2.15), (12.3, 2.55), arrowprops={"arrowstyle": "<->", "color": GREY})
    axes.annotate("", (12.3, 3.7), (12.3, 3.9), arrowprops={"arrowstyle": "-", "color": GREY})
    axes.text(7.3, 0.0, f"rates are per clock, at {gpu.clock / 1e9:.3g} GHz", ha="center", fontsize=8)
    axes.set(xlim=(-0.1, 14.7), ylim=(-0.25, 8.55))
    axes.axis("off")
    return figure
