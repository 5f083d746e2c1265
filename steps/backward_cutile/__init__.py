"""The backward pass in cuTile, beginning with the formulas in PyTorch; each step changes one thing."""
