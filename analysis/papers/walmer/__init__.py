"""Walmer et al. 2023: "Teaching Matters: Investigating the Role of Supervision in ViTs".

Of the claims of table 3, those are here that one supervised model can test; the others compare
kinds of supervision. Where the paper distinguishes kinds of supervision, the claim is that about
supervised models. Its models have 12 layers; for other depths, layers at the same relative depth
are used.
"""

from ...study.figure import Paper

WALMER = Paper("Walmer et al. (2023)", "https://arxiv.org/abs/2212.03862", prefix="W.", rank=2)
