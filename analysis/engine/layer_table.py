"""The layers of a model as a table, to choose from for `layers=`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit_tf.features.conversion import ModelLike, features_of

if TYPE_CHECKING:
    import pandas as pd


def layers(model: ModelLike) -> pd.DataFrame:
    """Table of a model's layers in depth order: the names and patterns that `layers=` accepts.

    Args:
        model: the model, as in `vit_tf.analysis`.

    Returns:
        `pandas.DataFrame` with one row for each layer, indexed by its name.

        * `shape`: shape of the layer's output, without the example axis. An axis of variable
          length is None.
        * `measured`: whether measurements of representations select the layer by default.

    Raises:
        ValueError: if the model is not supported, or if it is a function, whose layers are unknown
            until it is called.

    Examples:
        >>> table = analysis.layers(vit)
        >>> table.loc["pooled", "shape"]
        (192,)

    See also:
        `features_of`, `vit_tf.submodel`.
    """
    import pandas as pd

    facts = features_of(model, layers="*").facts
    if not facts.layers:
        raise ValueError(
            "Expected a Keras model or a PyTorch module: other models have layers only while "
            f"they run on images. Received: {type(model).__name__}"
        )
    try:
        measured = features_of(model).facts.layers
    except ValueError:  # no representations are found in it
        measured = ()
    return pd.DataFrame(
        {
            "shape": [facts.shapes.get(layer) for layer in facts.layers],
            "measured": [layer in measured for layer in facts.layers],
        },
        index=pd.Index(facts.layers, name="layer"),
    )
