"""How long shared memory is busy with a QK product, and how many registers a thread gives to be rid of some of it."""

from tutorial_lib.exercises import Plain, Wrong, first_wrong

BYTES, BANDWIDTH = 2, 128  # of an element; that shared memory delivers a clock
THREADS, REGISTER = 128, 4  # of a warpgroup; bytes


def right(rows, keys, columns, held):
    clocks = (keys * columns + rows * (columns - held)) * BYTES // BANDWIDTH
    return clocks, rows * held * BYTES // (THREADS * REGISTER)


def told(rows, keys, columns, held):
    clocks, registers = right(rows, keys, columns, held)
    return (
        f"The product reads {keys} x {columns} elements of K, and {rows} x {columns - held} of Q, {BYTES} bytes each: "
        f"{clocks} clocks at {BANDWIDTH} bytes a clock. {rows} x {held} elements of Q stand in the registers of "
        f"{THREADS} threads, {registers} each, as a register holds two."
    )


def judge(function, chance):
    cases = [(64, 128, 128, 0), (64, 128, 128, 32), (64, 128, 128, 128), (64, 64, 256, 128)]
    for _ in range(10):
        columns = chance.choice([64, 128, 256])
        cases.append(
            (64 * chance.randint(1, 2), chance.choice([64, 128]), columns, 16 * chance.randint(0, columns // 16))
        )
    return first_wrong(function, right, cases, told)


EXERCISE = Plain(
    name="quarter_q_registers",
    function="price",
    by=judge,
    hints=(
        "K is read whole, whatever is held of Q. Of Q the product reads from shared memory what is not in registers.",
        "Clocks: elements of K and of Q that are read, times 2 bytes, divided by 128 bytes a clock. Registers: "
        "elements held, times 2 bytes, divided by the 4 bytes of a register and by 128 threads.",
        "clocks = (keys * columns + rows * (columns - held)) * 2 // 128, and registers = rows * held * 2 // (4 * 128).",
    ),
    solution="""
def price(rows, keys, columns, held):
    read = keys * columns + rows * (columns - held)
    return read * 2 // 128, rows * held * 2 // (4 * 128)
""",
    wrong=(
        Wrong("nothing is read of K", "elements of K", old="keys * columns + ", new=""),
        Wrong("all of Q is read", "of Q", old="(columns - held)", new="columns"),
        Wrong("elements and not bytes", "2 bytes each", old="read * 2", new="read"),
        Wrong("a register for an element", "a register holds two", old="rows * held * 2 //", new="rows * held * 4 //"),
        Wrong("of one warp", "128 threads", old="(4 * 128)", new="(4 * 32)"),
    ),
    debrief="Without any of Q in registers shared memory is busy for three quarters of the time that the tensor cores "
    "take for the product. All of Q would take 32 registers a thread, and a quarter takes 8.",
)
