"""What every step is measured with: problems, checks, timing, the CPU interpreter, the compiler lens and reports.

Nothing here knows a step. Each module is imported by name (``from tutorial_lib.problem import Problem``), so
importing the package costs nothing.
"""
