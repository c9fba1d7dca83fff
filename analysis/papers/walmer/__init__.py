"""Walmer et al. 2023: "Teaching Matters: Investigating the Role of Supervision in ViTs".

Of the observations of table 3, those are claims that supervised ViTs, larger ones and ViTs trained
on masked patches can test; docs/papers-on-released-weights.md lists those that need released
weights. Its models have 12 layers; for other depths, layers at the same relative depth
are used.
"""

from ...study.figure import Paper

WALMER = Paper("Walmer et al. (2023)", "https://arxiv.org/abs/2212.03862", prefix="W.", rank=2)
