"""Measuring steps: checks, timing in turn, and what is run in a process of its own."""
