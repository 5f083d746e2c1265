"""The course in JupyterLab, in a real browser: a chapter run from top to bottom, and an exercise solved."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest

from steps import learn
from steps.exercises import get_exercise
from tests.selection import ROOT
from tutorial_lib.answers import Answers

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHAPTER = "003_exp2.ipynb"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture
def lab(tmp_path):
    """JupyterLab on a copy of the series, started as it ships: with a token."""
    for name in ("steps", "tutorial_lib", "results"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "notebooks").mkdir()
    notebook = json.loads((ROOT / "notebooks" / CHAPTER).read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    (tmp_path / "notebooks" / CHAPTER).write_text(json.dumps(notebook), encoding="utf-8")
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", f"--ServerApp.root_dir={tmp_path}"]
    if os.geteuid() == 0:
        command.append("--allow-root")
    # Nobody's tabs are opened again, and nobody's settings change what is seen.
    own = {"JUPYTERLAB_WORKSPACES_DIR": f"{tmp_path}/spaces", "JUPYTERLAB_SETTINGS_DIR": f"{tmp_path}/settings"}
    log = tmp_path / "log.txt"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=tmp_path, env=os.environ | own)
    try:
        address = wait_for(
            lambda: re.search(r"(http://127\.0\.0\.1:(\d+)/)lab\?(token=\w+)", log.read_text(encoding="utf-8")), 60
        )
        wait_for(lambda: answers(int(address[2])), 60)  # the address is told before anybody listens there
        yield tmp_path, address
    finally:
        process.terminate()
        process.wait(30)


def answers(port: int) -> bool:
    """Whether a server listens."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition, seconds: float):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.3)
    return found


def open_chapter(playwright, address, path: str):
    """A page of the browser with the notebook, whose kernel is there."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
    page = browser.new_page(viewport={"width": 1200, "height": 1000})
    page.goto(f"{address[1]}lab/tree/{path}?{address[3]}")
    page.locator(".jp-Notebook").wait_for(timeout=60_000)
    page.get_by_text("| Idle").wait_for(timeout=60_000)
    return page


def test_an_exercise_is_got_wrong_understood_and_solved(lab, tmp_path):
    """In the learner's copy: a wrong answer is told what is wrong, a hint unfolds, the right one is counted."""
    from playwright.sync_api import sync_playwright

    exercise = get_exercise("exp2")
    folder, address = lab
    learn.write_copies(folder / "learn", ROOT / "notebooks")
    with sync_playwright() as playwright:
        page = open_chapter(playwright, address, f"learn/{CHAPTER}")
        cells = page.locator(".jp-CodeCell")
        cells.first.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        cells.first.get_by_text("without a GPU").or_(cells.first.get_by_text("on a GPU")).wait_for(timeout=120_000)
        cell = cells.filter(has_text=f'lesson.exercise("{exercise.name}"')

        def answer(source: str, told: str) -> None:
            cell.locator(".cm-content").click()
            page.keyboard.press("Control+a")
            page.keyboard.insert_text(f'{source}\n\nlesson.exercise("{exercise.name}", {exercise.function})')
            page.keyboard.press("Control+Enter")
            cell.get_by_text(told).first.wait_for(timeout=120_000)

        assert "..." in cell.locator(".cm-content").inner_text()
        answer(exercise.wrong_source(exercise.wrong[0]), exercise.wrong[0].told)
        hint = cell.get_by_text(exercise.hints[0])
        assert not hint.is_visible() and not cell.get_by_text("The solution").is_visible()
        cell.get_by_text("Hint 1 of 3").click()
        hint.wait_for(timeout=10_000)
        assert not cell.get_by_text(exercise.hints[1]).is_visible()
        page.screenshot(path=os.environ.get("SCREENSHOT_WRONG", tmp_path / "wrong.png"))
        assert Answers(folder / "learn").solved() == {}
        answer(exercise.solution.strip(), "Right.")
        page.screenshot(path=os.environ.get("SCREENSHOT_RIGHT", tmp_path / "right.png"))
        page.context.browser.close()
    assert list(Answers(folder / "learn").solved()) == [exercise.name]


def test_a_chapter_runs_in_jupyterlab(lab, tmp_path):
    from playwright.sync_api import sync_playwright

    folder, address = lab
    path = folder / "notebooks" / CHAPTER

    def cells():
        return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]

    with sync_playwright() as playwright:
        page = open_chapter(playwright, address, f"notebooks/{CHAPTER}")
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()

        def done():
            page.keyboard.press("Control+s")
            page.wait_for_timeout(2000)
            return all(cell["execution_count"] for cell in cells())

        wait_for(done, 300)
        page.locator(".jp-RenderedImage img").first.wait_for(timeout=30_000)
        assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
        assert page.locator(".jp-Dialog").count() == 0  # no missing extension, no failure
        page.screenshot(path=os.environ.get("SCREENSHOT", tmp_path / "lab.png"))
        page.context.browser.close()
    outputs = [output for cell in cells() for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
