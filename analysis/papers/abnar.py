"""Abnar and Zuidema 2020: "Quantifying Attention Flow in Transformers"."""

from ..heads.rollout import attention_rollout
from ..plots.attention_plots import plot_attention_rollout
from .chapters import LOCALITY
from .vocabulary import Figure, Paper, SharedPass, StudyModel, each, statistic

ABNAR = Paper("Abnar and Zuidema (2020)", "https://arxiv.org/abs/2005.00928", prefix="A.", rank=3)


def rollout_of(model: StudyModel) -> SharedPass:
    """Attention rollout: attention and identity skips, multiplied through the layers."""
    taps = model.layers("rollout")
    model.require_grid()
    sites = dict.fromkeys(tap.rpartition("/")[0] for tap in taps)
    missing = [f"{s}/{end}" for s in sites for end in ("skip", "sum") if f"{s}/{end}" not in taps]
    needed = f"layer {''.join(missing[:1])}, so this skip connection may be missing"
    model.require(not missing, needed)
    return statistic(attention_rollout, model, taps, name="rollout")


ROLLOUT = Figure(
    paper=ABNAR,
    numbers="rollout",
    chapter=LOCALITY,
    shows="attention rollout",
    models=each("vit", "gap"),
    measure=rollout_of,
    results="rollout",
    draw=plot_attention_rollout,
    name="rollout-{model}",
    title="Attention rollout",
    caption=(
        "Each panel belongs to one layer. It shows from which image positions the content of the "
        "CLS token comes or, for a model without a CLS token, the content of the mean token. "
        "Attention and skip connection are assumed to contribute half each."
    ),
)
