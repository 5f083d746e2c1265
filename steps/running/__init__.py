"""What ``python -m steps.run`` shows: its lists of steps, its progress, its table and what is learned from it."""
