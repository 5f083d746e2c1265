"""Where a token of a sequence lies, by the table of its pages."""

from tutorial_lib.exercises import Plain, Wrong


def judge(function, chance):
    for page_size in (16, 64, 1, 256):
        table = chance.sample(range(1000), 40)
        for token in (0, page_size - 1, page_size, *(chance.randrange(40 * page_size) for _ in range(10))):
            mine = function(token, list(table), page_size)
            if not isinstance(mine, tuple) or len(mine) != 2:
                return f"It must return two numbers, page and row; yours returns {mine!r}."
            begin, right = 0, None
            for page in table:  # page after page, as they stand in the table
                if begin <= token < begin + page_size:
                    right = page, token - begin
                begin += page_size
            if mine != right:
                first = ", ".join(map(str, table[:4]))
                return (
                    f"The table begins with {first}, and pages have {page_size} tokens. Token {token} lies in page "
                    f"{right[0]}, row {right[1]}; yours says page {mine[0]}, row {mine[1]}."
                )
    return None


EXERCISE = Plain(
    name="page_place",
    function="place_of",
    by=judge,
    hints=(
        "Tokens 0 to page_size - 1 of a sequence are in its first page, the next page_size in its second. In which of "
        "its pages is the token, counted from 0?",
        "That is token // page_size. Which number this page has, the table says: pages lie anywhere.",
        "page = table[token // page_size]; row = token % page_size.",
    ),
    solution="""
def place_of(token, table, page_size):
    page = table[token // page_size]
    row = token % page_size
    return page, row
""",
    wrong=(
        Wrong("the table is not asked", "lies in page", old="table[token // page_size]", new="token // page_size"),
        Wrong("the table is asked for the token", "lies in page", old="table[token // page_size]", new="table[token]"),
        Wrong("the row is that in the sequence", "yours says page", old="token % page_size", new="token"),
        Wrong("division and rest swapped", "lies in page", old="token % page_size", new="token // page_size"),
    ),
    debrief="One division, one look into the table, one rest. A kernel does it once for a tile, not for each token, as "
    "long as a tile lies in one page.",
)
