"""The kernel that reads the SMs' counters; a module of its own, as Triton is loaded only where there is a GPU."""

import triton
import triton.language as tl


@triton.jit
def read_counters(counters):
    """Every block writes its SM, the SM's cycle counter and the GPU's nanoseconds to its row of counters [block, 3]."""
    row = counters + 3 * tl.program_id(0)
    processor = tl.inline_asm_elementwise("mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    cycles = tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    time = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(row, processor.to(tl.int64))
    tl.store(row + 1, cycles)
    tl.store(row + 2, time)
