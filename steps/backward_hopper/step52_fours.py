"""Step 52: four numbers of dQ at a time.

An instruction can add four numbers that lie side by side, and wgmma leaves a lane only two. But nobody says in which
order the columns of the sums must lie: of 16 columns, a lane's two and the two that lie 8 further are put side by side,
and the last kernel puts them back. No number moves from lane to lane.
"""

from steps.backward_hopper import adding, step51_under_way

STEP = step51_under_way.STEP.evolve(
    number=52,
    name="fours",
    title="dQ added by fours",
    change="The sums for dQ hold columns in another order, so that a lane adds four numbers at once.",
    adding=adding.FOURS,
)
