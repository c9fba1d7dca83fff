"""Walmer et al. 2023: "Teaching Matters: Investigating the Role of Supervision in ViTs".

Of the findings of table 3 there are those that one supervised model can decide; the others compare
kinds of supervision. Where the paper tells models apart by their supervision, the finding is that
of the supervised ones. Its models have 12 layers; of other depths the layers whose middle lies in
the same share of it are meant.
"""

from ...study.figure import Paper

WALMER = Paper("Walmer et al. (2023)", "https://arxiv.org/abs/2212.03862", prefix="W.", rank=2)
