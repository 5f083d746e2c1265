"""How much of its time each role of a block waits, from the events of a trace."""

from tutorial_lib.exercises import Compared, Wrong
from tutorial_lib.files import RESULTS
from tutorial_lib.records import recorded_traces

WAITING = ("wait", "product", "store")
WORKING = ("softmax", "issue", "other")


def made_up(chance) -> list[tuple]:
    """Events of three roles, of which one never waits, without those in the middle."""
    events = []
    for role in ("consume 0", "consume 1", "produce 2"):
        at = chance.randrange(50)
        for n in range(40):
            end = at + chance.randrange(10, 900)
            kinds = WAITING if role.startswith("produce") and n % 4 else (*WAITING, *WORKING)
            kind = chance.choice(WORKING if role == "consume 1" else kinds)
            events.append((role, kind, f"{kind} {n}", at, end))
            at = end + (20000 if n == 19 else 0)
    chance.shuffle(events)
    return events


def cases(chance):
    """Made up events, and those of the recorded traces."""
    yield from ((made_up(chance),) for _ in range(3))
    yield from ((list(trace.events),) for trace in recorded_traces(RESULTS))


EXERCISE = Compared(
    name="waiting_share",
    function="waiting_share",
    cases=cases,
    named=lambda events: f"waiting_share(...) of {len(events)} events, of which the first is {events[0]}",
    hints=(
        "Two numbers for each role: the clocks that its events took, and those of them that were waits.",
        'An event takes end - begin clocks. It is a wait if its kind is "wait", "product" or "store".',
        "Keep two dictionaries, waited and took, add to both in one loop over the events, and divide at the end: "
        "{role: waited[role] / took[role] for role in took}.",
    ),
    solution="""
def waiting_share(events):
    waited, took = {}, {}
    for role, kind, label, begin, end in events:
        took[role] = took.get(role, 0) + end - begin
        if kind in ("wait", "product", "store"):
            waited[role] = waited.get(role, 0) + end - begin
    return {role: waited.get(role, 0) / took[role] for role in took}
""",
    wrong=(
        Wrong(
            "only waits for barriers count: waits for a product and for a store are waits, too",
            old='kind in ("wait", "product", "store")',
            new='kind == "wait"',
        ),
        Wrong(
            "events are counted, and not the clocks that they take",
            source="""
def waiting_share(events):
    waited, took = {}, {}
    for role, kind, label, begin, end in events:
        took[role] = took.get(role, 0) + 1
        waited[role] = waited.get(role, 0) + (kind in ("wait", "product", "store"))
    return {role: waited[role] / took[role] for role in took}
""",
        ),
        Wrong(
            "it is divided by the time from a role's first event to its last: a trace keeps the events of a block's "
            "begin and of its end alone",
            source="""
def waiting_share(events):
    waited, first, last = {}, {}, {}
    for role, kind, label, begin, end in events:
        first[role], last[role] = min(begin, first.get(role, begin)), max(end, last.get(role, end))
        if kind in ("wait", "product", "store"):
            waited[role] = waited.get(role, 0) + end - begin
    return {role: waited.get(role, 0) / (last[role] - first[role]) for role in first}
""",
        ),
        Wrong(
            "it is divided by the time of all roles together: each role has a clock of its own",
            old="waited.get(role, 0) / took[role] for",
            new="waited.get(role, 0) / sum(took.values()) for",
        ),
        Wrong(
            "a role that never waits is left out",
            "must be a dictionary of",
            old="waited.get(role, 0) / took[role] for role in took",
            new="waited[role] / took[role] for role in waited",
        ),
        Wrong("the share is that in which it works", old="kind in (", new="kind not in ("),
    ),
    debrief="A share says where a role is, not what that costs: the producer of a good kernel waits most of its time, "
    "since its work is to ask. A consumer's wait costs time only when the tensor cores have nothing to do meanwhile.",
)
