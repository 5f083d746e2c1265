"""Host code of standalone programs: templates that ``steps.exporting.standalone`` fills in.

Each is a text with a docstring and plain Python behind it. ``HOST.name`` stands for a value that a step's launch gives,
written as a literal or as the name of a constant. A line that ends in ``#? condition`` is kept where that holds of
these values; with the lines that are indented below it, if it begins a block.
"""
