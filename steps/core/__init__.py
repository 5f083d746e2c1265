"""What all steps share: what a step is, the ladder, tile sizes, the order of tiles, the choice of the best."""
