"""Banks: how many turns shared memory takes for eight reads of 16 bytes."""

from itertools import pairwise

from tutorial_lib.exercises import Plain, Wrong, first_wrong


def right(addresses: list[int]) -> int:
    from tutorial_lib.layouts import words_a_bank

    return max(words_a_bank(addresses).values())


def judge(function, chance):
    strides = [0, 16, 64, 128, 144, 256, 2048]
    chance.shuffle(strides)
    cases = [([row * stride for row in range(8)],) for stride in strides]
    cases += [([16 * chance.randrange(128) for _ in range(8)],) for _ in range(20)]
    cases += [([0, 0, 0, 0, 128, 128, 16, 32],), ([0, 16, 32, 48, 64, 80, 96, 224],)]
    return first_wrong(function, right, cases, told)


def told(addresses: list[int]) -> str:
    """What the case is about."""
    if len(set(addresses)) == 1:
        return "All eight read the same four words, and one word is delivered to all lanes in one turn."
    if len(set(addresses)) < len(addresses):
        return "Some of them read the same words, which counts once."
    distances = {after - before for before, after in pairwise(addresses)}
    if len(distances) == 1:
        distance = distances.pop()
        return f"The reads are {distance} bytes apart, which is {distance // 4} words; there are 32 banks."
    return "Count the different words in every bank; the busiest bank decides."


EXERCISE = Plain(
    name="bank_turns",
    function="turns",
    by=judge,
    hints=(
        "A read of 16 bytes at an address wants four words of 4 bytes: which numbers do they have?",
        "Put the numbers of all words that are wanted into a set, so that the same word counts once. Word w lies in "
        "bank "
        "w % 32.",
        "words = {address // 4 + n for address in addresses for n in range(4)}. Then count how often each w % 32 "
        "occurs, "
        "and take the largest count.",
    ),
    solution="""
def turns(addresses):
    words = {address // 4 + n for address in addresses for n in range(4)}
    banks = [word % 32 for word in words]
    return max(banks.count(bank) for bank in banks)
""",
    wrong=(
        Wrong(
            "the same word counts several times",
            "which counts once",
            source="""
def turns(addresses):
    words = [address // 4 + n for address in sorted(addresses) for n in range(4)]
    if len(set(addresses)) == 1:
        return 1
    banks = [word % 32 for word in words]
    return max(banks.count(bank) for bank in banks)
""",
        ),
        Wrong("bytes are taken for words", "must be", old="address // 4 + n", new="address + n"),
        Wrong("8 banks", "must be", old="word % 32", new="word % 8"),
        Wrong(
            "all words, not those of the busiest bank",
            "must be",
            old="max(banks.count(bank) for bank in banks)",
            new="len(banks) - len(set(banks)) + 1",
        ),
    ),
    debrief="Rows that are 128 bytes apart begin in the same bank: eight turns. Rows 144 bytes apart, or swizzled "
    "ones, take "
    "one.",
)
