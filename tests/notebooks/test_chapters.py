"""The course's table and the list of chapters, which agree with the chapters, the steps and the notebooks."""

import re
from collections import Counter

import pytest

from steps import GRADIENTS, PAGED, PARALLEL, QUANTIZED, STEPS, chapters, get_step
from steps.core.ladder import owner_of, part_of
from tutorial_lib import notebooks
from tutorial_lib.course import TABLE, chapters_of, read_course
from tutorial_lib.passes import pass_of

SOURCES = notebooks.sources()
SHARING = {
    "fp8",
    "backward",
    "backward_hopper",
    "blackwell",
    "cdna",
    "parallel",
    "everyday",
}  # parts whose steps share chapters
STEMS = {path.stem for path in SOURCES}
HEADED = set().union(*(chapters.numbers_of(notebooks.heading(path)) for path in SOURCES))
SHARED = [
    s
    for s in (*STEPS, *GRADIENTS[1:], *PAGED, *QUANTIZED, *PARALLEL)
    if part_of(owner_of(s).number).name in SHARING or (s.number in HEADED and f"{s.number:03}_{s.name}" not in STEMS)
]
WITH_CHAPTERS = [step for step in STEPS[1:] if step not in SHARED]
SOURCE = notebooks.NOTEBOOKS / "source"
COMMITTED = notebooks.NOTEBOOKS / notebooks.LIST
ITEM = re.compile(r"^(?P<mark>\d+\.|-) \[(?P<heading>.*)\]\((?P<name>\w+)\.ipynb\)(?P<from>.*)$", re.MULTILINE)


def write_course(folder, *names, **fields):
    """A course of one part, with a chapter of each name, and ``fields`` of each chapter in the table."""
    (folder / "source").mkdir(exist_ok=True)
    rows = []
    for name in names:
        (folder / "source" / f"{name}.md").write_text(f"# About {name}\n\nText.\n", encoding="utf-8")
        row = {"name": f'"{name}"', "minutes": 10} | fields.get(name, {})
        rows.append("{ " + ", ".join(f"{key} = {value}" for key, value in row.items()) + " }")
    table = f'[[part]]\ntitle = "One"\nabout = "Of it."\nchapters = [{", ".join(rows)}]\n'
    (folder / "source" / TABLE).write_text(table, encoding="utf-8")


def test_the_committed_list_is_the_one_that_is_made():
    assert COMMITTED.read_text(encoding="utf-8") == chapters.listed(), "run `python -m steps.chapters`"


def test_making_the_list_again_changes_nothing(tmp_path, monkeypatch, capsys):
    write_course(tmp_path, "000_start_here", "001_naive", "power", power={"beside": "true"})
    monkeypatch.setattr(chapters, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(chapters, "listed", lambda make=chapters.listed: make(tmp_path))
    made = []
    for _ in range(2):
        assert chapters.main([]) == 0
        made.append((tmp_path / "README.md").read_text(encoding="utf-8"))
    assert made[0] == made[1]
    assert [item["mark"] for item in ITEM.finditer(made[0])] == ["1.", "2.", "-"]
    assert "2 of them" in made[0]
    assert capsys.readouterr().out.split() == [str(tmp_path / "README.md")] * 2


def no_chapter(step):
    """What a step needs that no chapter tells of."""
    return (
        f"step {step.label} needs a chapter, notebooks/source/{step.number:03}_{step.name}.md, or its number in the "
        f"heading of another, such as 'Steps 7 and {step.number}: ...'; then run `python -m tutorial_lib.notebooks` "
        "with the chapter's name, and `python -m steps.chapters`"
    )


def test_every_step_has_its_chapter():
    assert [no_chapter(s) for s in WITH_CHAPTERS if f"{s.number:03}_{s.name}" not in STEMS] == []


def test_a_step_without_a_chapter_of_its_own_is_told_in_another():
    """By its name or its number in the text, or by its number in the heading."""
    text = " ".join(path.read_text(encoding="utf-8") for path in SOURCES)
    named = {word.lower() for word in re.findall(r"(?i)\bsteps?\s+(\w+)", text)}
    assert SHARED
    assert [s.label for s in SHARED if owner_of(s).number not in HEADED and not named & {s.name, str(s.number)}] == []


def timed_in(path) -> list[str]:
    """The steps of which a chapter's cells call ``time()``, each as often as they do."""
    told = path.read_text(encoding="utf-8")
    lessons = dict(re.findall(r"^(\w+)(?:, rows)? = Lesson\(\"(\w+)\"", told, re.MULTILINE))
    found = re.findall(r"Lesson\(\"(\w+)\".*\)\.time\(\)", told)
    found += [lessons[name] for name in re.findall(r"\b(\w+)\.time\(\)", told) if name in lessons]
    for names in re.findall(r"for each in \((.*?)\) for part in each\.time\(\)", told):
        found += [lessons[name] for name in names.split(", ")]
    return found


def test_every_numbered_step_is_timed_in_one_chapter():
    """All but what others are compared with; one table has all steps over several GPUs."""
    found = Counter(name for path in SOURCES for name in timed_in(path))
    steps = [s for s in dict.fromkeys((*STEPS, *GRADIENTS, *PAGED, *QUANTIZED)) if s.number and s not in PARALLEL]
    asked = [s.name for s in steps if s.name != pass_of(s).baseline]
    assert len(asked) > 60 and {name: found[name] for name in asked if found[name] != 1} == {}


def test_a_heading_says_of_which_steps_a_chapter_tells():
    assert chapters.numbers_of("Steps 108 to 110 and 115: masks that people use") == {108, 109, 110, 115}
    assert chapters.numbers_of("Step 3: powers of 2") == {3} and chapters.numbers_of("FlashAttention 2: tiles") == set()
    assert chapters.chapter_of(get_step("paged")) == "900_split_kv"
    found = [
        chapters.chapter_of(get_step(name))
        for name in ("next_softmax_first", "no_redundant_barriers", "row_max_ilp_multicast")
    ]
    assert found == ["208_next_softmax_first", "208_next_softmax_first", "208_next_softmax_first"]
    with pytest.raises(ValueError, match="no chapter has step 1000"):
        chapters.chapter_of(get_step("exp2").evolve(name="toy", number=1000))


@pytest.mark.parametrize("step", WITH_CHAPTERS, ids=lambda s: s.name)
def test_a_heading_has_the_number_of_its_step(step):
    path = SOURCE / f"{step.number:03}_{step.name}.md"
    assert path.exists(), no_chapter(step)
    heading = notebooks.heading(path)
    assert heading.startswith(("Step ", "Steps ")) and step.number in chapters.numbers_of(heading)


def test_the_list_has_the_path_numbered_and_the_rest_beside_it():
    found = {item["name"]: item for item in ITEM.finditer(chapters.listed())}
    assert set(found) == {path.stem for path in SOURCES}
    numbered = [item for item in found.values() if item["mark"] != "-"]
    assert [item["mark"] for item in numbered] == [f"{n}." for n in range(1, len(numbered) + 1)]
    assert "from 7 approx_division)" in found["008_larger_tile"]["from"]
    assert "from 104 gluon_larger_tile of gluon)" in found["200_wgmma"]["from"]


def test_the_path_is_short_and_nothing_on_it_needs_what_comes_later():
    course = chapters_of(SOURCE)
    path = [chapter for chapter in course if chapter.place]
    assert len(path) <= 24 and all(10 <= chapter.minutes <= 45 for chapter in course)
    for number, chapter in enumerate(path):
        assert set(chapter.needs) <= {earlier.name for earlier in path[:number]}, chapter.name
    for number, chapter in enumerate(course):
        assert set(chapter.needs) <= {other.name for other in course[:number]} | {c.name for c in path}, chapter.name


def test_a_folder_lists_the_chapters_in_the_order_of_the_course():
    names = [chapter.name for chapter in chapters_of(SOURCE)]
    assert names == sorted(names)


def test_no_fork_is_on_the_path():
    path = {chapter.name for chapter in chapters_of(SOURCE) if chapter.place}
    assert not path & {f"{s.number:03}_{s.name}" for s in STEPS if s.fork}


def test_the_line_under_a_heading_says_what_a_chapter_needs(tmp_path):
    needs = {"needs": '["00_one"]', "minutes": 17}
    write_course(tmp_path, "00_one", "00_two", "00_three", **{"00_two": needs, "00_three": {"beside": "true"}})
    source = tmp_path / "source"
    lines = [notebooks.read_source(source / f"{c.name}.md").cells[0].source for c in chapters_of(source)]
    assert lines[0] == "# About 00_one\n\n*One · chapter 1 of the path · about 10 minutes*\n\nText."
    assert "chapter 2 of the path · about 17 minutes · needs [About 00_one](00_one.ipynb)*" in lines[1]
    assert "beside the path" in lines[2]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda source: (source / "00_more.md").write_text("# More\n", encoding="utf-8"), "00_more stands in no part"),
        (lambda source: (source / "00_one.md").unlink(), "00_one has no file"),
        (
            lambda source: (source / TABLE).write_text("[[part]]\n", encoding="utf-8"),
            "is no table of a course: KeyError: 'chapters'",
        ),
        (
            lambda source: (source / TABLE).write_text("part =", encoding="utf-8"),
            "is no table of a course: TOMLDecodeError",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_chapters_is_refused(tmp_path, change, told):
    write_course(tmp_path, "00_one", "00_two")
    change(tmp_path / "source")
    with pytest.raises(ValueError, match=re.escape(told)):
        read_course(tmp_path / "source")


def test_a_chapter_is_named_once_and_needs_one_that_is_there(tmp_path):
    write_course(tmp_path, "00_one", "00_one")
    with pytest.raises(ValueError, match="00_one is named twice"):
        read_course(tmp_path / "source")
    write_course(tmp_path, "00_one", **{"00_one": {"needs": '["00_none"]'}})
    with pytest.raises(ValueError, match="00_none is needed, and there is no such chapter"):
        read_course(tmp_path / "source")


def test_a_chapter_has_the_number_of_its_step_and_a_heading(tmp_path):
    write_course(tmp_path, "008_explicit")
    with pytest.raises(ValueError, match="step explicit is number 100 now"):
        chapters.listed(tmp_path)
    write_course(tmp_path, "001_naive")
    (tmp_path / "source" / "008_explicit.md").unlink()
    (tmp_path / "source" / "001_naive.md").write_text("No heading\n", encoding="utf-8")
    with pytest.raises(ValueError, match="must begin with a heading"):
        chapters.listed(tmp_path)


def test_sources_and_notebooks_have_the_same_names():
    made = {path.stem for path in notebooks.NOTEBOOKS.glob("*.ipynb")}
    assert made == {path.stem for path in SOURCES}, "run `make notebooks`, and delete what has no source any more"


# --- the glossary's links ---


def test_a_word_of_the_glossary_is_linked_where_it_is_used_first(tmp_path):
    write_course(tmp_path, "00_one", "glossary")
    source = tmp_path / "source"
    (source / "glossary.md").write_text(
        "# Words\n\n## CTA\n\n*Also: thread block*\n\nText.\n\n## warpgroup\n\nText.\n", encoding="utf-8"
    )
    text = "# A warpgroup\n\nSee `CTA`, [CTA](x.md) and CTAs, CTA. Warpgroups. A thread block of a warpgroup.\n"
    (source / "00_one.md").write_text(text + "\n```python\n'CTA'\n```\n", encoding="utf-8")
    made = "\n".join(cell.source for cell in notebooks.read_source(source / "00_one.md").cells)
    assert "# A warpgroup\n" in made and "'CTA'" in made and "See `CTA`, [CTA](x.md) and" in made
    assert "[CTAs](glossary.ipynb#CTA), CTA. [Warpgroups](glossary.ipynb#warpgroup)." in made
    assert made.count("glossary.ipynb#") == 2


def test_no_word_is_linked_in_the_line_under_the_heading_a_folded_answer_or_a_steps_name(tmp_path):
    write_course(tmp_path, "00_one", "glossary")
    source = tmp_path / "source"
    (source / "glossary.md").write_text(
        "# Words\n\n## shared memory\n\nText.\n\n## swizzle\n\nText.\n", encoding="utf-8"
    )
    table = (source / "course.toml").read_text(encoding="utf-8")
    (source / "course.toml").write_text(
        re.sub(r'title = "[^"]*"', 'title = "On shared memory"', table), encoding="utf-8"
    )
    folded = "<details><summary>A swizzle?</summary>Of shared memory.</details>"
    (source / "00_one.md").write_text(
        f"# One\n\n{folded}\n\nStep swizzle. A shared\nmemory. A swizzle.\n", encoding="utf-8"
    )
    made = notebooks.read_source(source / "00_one.md").cells[0].source
    assert "*On shared memory · " in made and folded in made
    assert (
        "Step swizzle. A [shared\nmemory](glossary.ipynb#shared-memory). A [swizzle](glossary.ipynb#swizzle)." in made
    )
