"""Step 36: the place of Q is free as soon as its last product has read it.

At head_dim 256 shared memory holds one tile of queries. Its place was given back behind the last softmax and the last
PV product were begun; but the last QK product is the last that reads it. Given back there, the next queries arrive
under that softmax and that product.
"""

from steps import step35_half_query

STEP = step35_half_query.STEP.evolve(
    number=36,
    name="early_query",
    title="Q's place is free early",
    change="At head_dim 256 the place of Q is given back right behind the last QK product that reads it.",
    early_query=True,
)
