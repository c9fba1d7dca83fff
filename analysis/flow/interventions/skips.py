"""Skip ablation: what does a model lose without the skips or the branches of a block?"""

from __future__ import annotations

import xarray as xr

from vit_tf import edits
from vit_tf.names import listed

from ...engine.front import measurement
from ...engine.types import LabelledImages, Model
from .effects import effects_of_cells, require_submodel

PATHS = ("skip", "branch")


@measurement("ablated_skips")
def skip_ablation(
    features: Model, images: LabelledImages, scores: str = "logits", whole_blocks: bool = True
) -> xr.Dataset:
    """Change of a model's predictions when the skips or the branches of one block are removed.

    They are set to zero in the trained model. Without its branches a block hands on what comes in,
    as if it were not there (Bhojanapalli et al. 2021, https://arxiv.org/abs/2103.14586);
    without its skips only what its branches make of it goes on, as in the models that Raghu et al.
    2021 trained so (figure 8). See `effects` for the formulas of the changes.

    Args:
        features: a model, or a submodel of skips and branches and of the scores, such as
            `vit_tf.submodel(vit, "*/skip", "*/branch", "logits")`, in the names of the tap grammar.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: the tap that holds the scores before a softmax, of shape (example, class).
        whole_blocks: whether all sites of a block lose them at once; else each site by itself. A
            unit of a ResNet is a block of one site.

    Returns:
        Dataset of `accuracy_change`, `loss_change` and `output_change`, each with `..._stderr`, of
        shape (layer, path), and of `accuracy` and `loss` of the model as it is. A layer is a block
        or a site, a path `"skip"` or `"branch"`; a layer that has no skip has NaN there.

    Raises:
        ValueError: for features that are no submodel of skips or branches and scores, or scores
            that are not finite.

    Examples:
        >>> effect = analysis.skip_ablation(vit, (images, labels))
        >>> effect.layer.values.tolist()
        ['block00', 'block01']
        >>> effect.path.values.tolist()
        ['skip', 'branch']

    See also:
        `plots.plot_skip_ablation`, `skip_ratio`, `head_ablation`; page
        measurements/flow/interventions.md.
    """
    cells = {}
    for tap in require_submodel(features, scores):
        site, _, path = tap.rpartition("/")
        if path in PATHS and site:
            layer = site.rpartition("/")[0] or site
            layer = layer if whole_blocks and layer.startswith("block") else site
            cells.setdefault((layer, path), {})[tap] = edits.zero
    if not cells:
        raise ValueError(
            "Expected taps 'site/skip' or 'site/branch', beside the scores. "
            f"Received: {listed(features.taps)}"
        )
    names = ("layer", "path")
    return effects_of_cells(features, cells, images, scores, names, description="skip ablation")
