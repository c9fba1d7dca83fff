"""Walmer et al. 2023: "Teaching Matters: Investigating the Role of Supervision in ViTs".

The observations of table 3 that supervised ViTs, larger ones and ViTs trained on masked patches can
test are claims; docs/papers-on-released-weights.md lists those that need released weights. The
paper's models have 12 layers; for other depths, layers at the same relative depth are used.
"""

from ..vocabulary import Paper

WALMER = Paper("Walmer et al. (2023)", "https://arxiv.org/abs/2212.03862", prefix="W.", rank=2)
