"""Packages that are missing: what stands in for them is there inside ``stood_in_for`` alone."""

import os
import subprocess
import sys

IMPORTS = """
from tutorial_lib.needs import is_missing, stood_in_for
import cuda

assert is_missing("cuda-tile")
with stood_in_for():
    import cuda.tile as inside
    from cuda import tile
    assert tile is inside and tile.kernel
try:
    from cuda import tile
except ImportError:
    print("fails", hasattr(cuda, "tile"))
"""


def test_behind_a_stand_in_an_import_fails_though_the_package_around_it_is_there(tmp_path):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").write_text("", encoding="utf-8")  # is found first, and has no tile
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.stdout == "fails False\n", done.stderr
