"""Step 606"""

from steps.backward_blackwell import keys, queries, step605_two_cta_backward

STEP = step605_two_cta_backward.STEP.evolve(
    number=606,
    name="next_scores_first",
    title="Next scores first",
    change="The next tile's scores begin before the gradients do, which are under way during its softmax.",
    of_keys=keys.next_scores_first,
    of_queries=queries.next_scores_first,
)
