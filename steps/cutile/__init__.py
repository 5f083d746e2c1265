"""Part 0 to 19: kernels in cuTile. The skeleton is in ``kernel``; each step fills one of its holes otherwise."""
