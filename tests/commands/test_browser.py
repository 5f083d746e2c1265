"""A chapter in JupyterLab, in a real browser: opened, run from top to bottom, looked at."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHAPTER = "03_exp2.ipynb"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on a copy of the series, started as it ships: with a token."""
    for name in ("steps", "tutorial_lib", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "notebooks").mkdir()
    notebook = json.loads((ROOT / "notebooks" / CHAPTER).read_text())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    (tmp_path / "notebooks" / CHAPTER).write_text(json.dumps(notebook))
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", f"--ServerApp.root_dir={tmp_path}"]
    if os.geteuid() == 0:
        command.append("--allow-root")
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path)
    try:
        yield tmp_path, wait_for(lambda: re.search(r"(http://127\.0\.0\.1:\d+/)lab\?(token=\w+)", log.read_text()), 60)
    finally:
        process.terminate()
        process.wait(30)


def wait_for(condition, seconds: float):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.3)
    return found


def test_a_chapter_runs_in_jupyterlab(lab, tmp_path):
    from playwright.sync_api import sync_playwright

    folder, address = lab
    path = folder / "notebooks" / CHAPTER

    def cells():
        return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.goto(f"{address[1]}lab/tree/notebooks/{CHAPTER}?{address[2]}")
        page.locator(".jp-Notebook").wait_for(timeout=60_000)
        page.get_by_text("| Idle").wait_for(timeout=60_000)  # the kernel is there
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()

        def done():
            page.keyboard.press("Control+s")
            page.wait_for_timeout(2000)
            return all(cell["execution_count"] for cell in cells())

        wait_for(done, 120)
        page.locator(".jp-RenderedImage img").first.wait_for(timeout=30_000)
        assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
        assert page.locator(".jp-Dialog").count() == 0  # no missing extension, no failure
        page.screenshot(path=os.environ.get("SCREENSHOT", tmp_path / "lab.png"))
        browser.close()
    outputs = [output for cell in cells() for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3


def test_without_the_token_nobody_gets_in(lab):
    from urllib.error import HTTPError
    from urllib.request import urlopen

    _, address = lab
    with pytest.raises(HTTPError) as refused:
        urlopen(f"{address[1]}api/contents")
    assert refused.value.code == 403
