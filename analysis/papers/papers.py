"""The papers whose figures and findings are repeated here: name and address of each."""

RAGHU = ("Raghu et al. (2021)", "https://arxiv.org/abs/2108.08810")
WALMER = ("Walmer et al. (2023)", "https://arxiv.org/abs/2212.03862")
DOSOVITSKIY = ("Dosovitskiy et al. (2020)", "https://arxiv.org/abs/2010.11929")
ABNAR = ("Abnar and Zuidema (2020)", "https://arxiv.org/abs/2005.00928")
