"""What the tensor cores and the exponentials allow, in TFLOPS, over head_dim."""

from tutorial_lib.exercises import Compared, Wrong

EXERCISE = Compared(
    name="walls",
    function="walls",
    cases=lambda chance: [(head_dim,) for head_dim in (64, 128, *(8 * chance.randint(2, 64) for _ in range(3)))],
    told=lambda head_dim: "They are TFLOPS of the tensor cores alone, the exponentials alone, one after the other.",
    hints=(
        "Take one score, that is one query and one key. How many operations do both products need for it, and how many "
        "exponentials does the softmax need? How many clocks of an SM is each of them?",
        "A score costs 2 * head_dim operations in QK and as many in PV, which is 4 * head_dim / 4096 clocks, and one "
        "exponential, which is 1 / 16 of a clock. One after the other, these times add.",
        "TFLOPS are operations / time * 132 * 1.98e9 / 1e12, with operations = 4 * head_dim and time each of "
        "operations / 4096, 1 / 16, and their sum.",
    ),
    solution="""
def walls(head_dim):
    clocks = 132 * 1.98e9
    operations = 4 * head_dim
    tensor = operations / 4096
    exponential = 1 / 16
    times = (tensor, exponential, tensor + exponential)
    return [operations / time * clocks / 1e12 for time in times]
""",
    wrong=(
        Wrong(
            "one hides behind the other: here their times add",
            old="exponential, tensor + exponential)",
            new="exponential, max(tensor, exponential))",
        ),
        Wrong(
            "only one of the two products is counted, or only multiplications", old="4 * head_dim", new="2 * head_dim"
        ),
        Wrong(
            "there is an exponential for each element of a row, and not one for a score",
            old="1 / 16",
            new="head_dim / 16",
        ),
        Wrong("only one of the 132 SMs is counted", old="132 * 1.98e9", new="1.98e9"),
        Wrong(
            "speeds are added, and not times",
            old="[operations / time * clocks / 1e12 for time in times]",
            new="[n * clocks / 1e12 for n in (4096, operations * 16, 4096 + operations * 16)]",
        ),
    ),
    debrief="At head_dim 64 both units take the same time: there stands the exponential wall. Twice the head_dim "
    "halves the share of the exponentials, and a chip with faster tensor cores moves the wall to larger head_dims.",
)
