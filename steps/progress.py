"""Which exercises are solved: ``python -m steps.progress`` lists them, chapter by chapter, and names the next.

Exit status: 0 done; 2 the request makes no sense, or the file of what is solved is damaged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tutorial_lib.command import as_command, make_console, parser_of, print_table


def rows(solved: dict[str, str], answered) -> list[tuple[str, str, str]]:
    """(chapter, exercise, "solved DAY", "begun" or "") in the order of the course. answered: whether there is one."""
    from steps.learn import exercises_in
    from tutorial_lib.notebooks import read_source, sources

    found = []
    for path in sources():
        for name in exercises_in(read_source(path)):
            state = f"solved {solved[name]}" if name in solved else "begun" if answered(name) else ""
            found.append((path.stem, name, state))
    return found


def run() -> int:
    from steps.exercises import answers_in

    answers = answers_in()
    found = rows(answers.solved(), answers.answer)
    console = make_console()
    print_table(console, ("chapter", "exercise", ""), found)
    open_ones = [row for row in found if not row[2].startswith("solved")]
    console.print(f"{len(found) - len(open_ones)} of {len(found)} exercises are solved.")
    if open_ones:
        console.print(f"The next is {open_ones[0][1]}, in chapter {open_ones[0][0]}: `make learn` opens the course.")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("steps.progress", __doc__)

    def work() -> int:
        parser.parse_args(arguments)
        return run()

    return as_command("steps.progress", work, wrong=(ValueError,))


if __name__ == "__main__":
    sys.exit(main())
