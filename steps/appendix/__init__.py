"""Part 90 to 99: what did nothing, or helped under one condition only. The skeletons are those of the other parts."""
