"""Steps as programs of their own, for ``steps.export``.

``standalone.standalone`` makes a program: the texts of its kernels, as ``steps.writing`` makes them, and host code, one
of the templates in ``hosts`` for each way of launching. ``launches`` asks a step for what fills it in. ``tables`` tells
of barriers and shared memory, ``others`` what a program would have otherwise for other problems.
"""
