"""One module or package for each paper: its figures with their claims."""

import pkgutil
import sys

if sys.flags.optimize > 1:
    raise ValueError(
        "vit_tf.analysis reads the claims of papers from docstrings, which python -OO removes: run "
        "python or python -O instead"
    )

# The numbers of the figures that each module defines, for `--figures`: they are checked before
# TensorFlow is imported.
FIGURE_NUMBERS = {
    "raghu": "1 B.1 2 H.1 H.2 sanity 3 4 C.5 C.6 5 6 C.1 C.2 C.3 C.4 7 E.1 E.2 8 9 10 D.1 D.2 D.3 "
    "11 D.4 F.3 13 F.1 F.2 12 G.1 G.2",
    "walmer": "W.6 W.19 W.20 W.21 W.22 W.23 W.3 W.14 W.18 W.4 W.15 V.7 W.2 W.11 W.12 W.13 W.17 W.5 "
    "W.16 W.7 W.24 W.25 W.8 W.26 W.27 W.9 W.28 W.T6 W.29 W.10 W.30 W.31 W.T1 W.T5",
    "abnar": "rollout",
    "dosovitskiy": "V.3 V.4 V.5 V.7",
    "davari": "sensitivity",
    "ding": "agreement",
    "causes": "heads blocks tokens lens",
    "darcet": "outliers roles",
    "chapters": "",
    "vocabulary": "",
}


def known_figures() -> list[str]:
    """The numbers of all figures; TensorFlow is imported only if there is a further module."""
    if {module.name for module in pkgutil.iter_modules(__path__)} <= FIGURE_NUMBERS.keys():
        return list(dict.fromkeys(" ".join(FIGURE_NUMBERS.values()).split()))
    from ..figures.figure import all_figures

    return list(dict.fromkeys(number for each in all_figures() for number in each.choices))
