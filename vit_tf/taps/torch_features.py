"""The layers of a PyTorch module as features: a function of images for every measurement."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from vit_tf.common.names import as_patterns, match
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.taps.tokens import TokenGrid

if TYPE_CHECKING:
    from vit_tf.taps.module_features import TorchFeatures


def torch_features(
    module: Any,
    *patterns: str | list[str],
    name: str | None = None,
    preprocessing: Preprocessing | None = None,
    token_grid: TokenGrid | None = None,
) -> TorchFeatures:
    """Features of a PyTorch module: a function from images to `{layer: array}`.

    The module runs as inference and is left as it was: the mode of each submodule, frozen batch
    normalizations, its hooks and the state of the random numbers. Layers come in the order in which
    they are computed, with the first call of a submodule under its own name and the second one
    under `"relu@2"`.

    Examples come first and channels last, as elsewhere in this package; which axis holds them is
    followed through the operations of the module. Where a submodule returns several tensors, its
    `logits`, `last_hidden_state` or first tensor counts. Besides submodules, patterns name values
    that no submodule returns: `"blocks.0/attention/weights"`, attention weights of shape (example,
    head, query, key), also of fused attention, and `heads`; `"blocks.0/attention/skip"`, `branch`
    and `sum`, and `"blocks.0/mlp/skip"` and so on.

    Args:
        module: `torch.nn.Module` of images of shape (example, channel, height, width).
        *patterns: shell patterns for names in `module.named_modules()`, or lists of them.
        name: name of the model in results; by default the name of its class.
        preprocessing: the `vit_tf.Preprocessing` of its images, for files and 8-bit images.
        token_grid: the `vit_tf.TokenGrid` of its tokens, for measurements that distinguish prefix
            tokens.

    Returns:
        Callable from images of shape (example, height, width, channel).

    Raises:
        ValueError: for a pattern that matches no submodule, and, when called, for submodules that
            do not run or return no tensor.

    Examples:
        features = vit_tf.torch_features(timm.create_model("vit_tiny_patch16_224"), "blocks.*")
        similarity = vit_tf.analysis.cka(features, images)
    """
    # PyTorch is imported only where there is a module of it.
    from vit_tf.taps.module_features import MODEL_VALUES, TorchFeatures, select_layers
    from vit_tf.torch_models.traced import as_model

    patterns, model = as_patterns(patterns), as_model(module)
    special = (*"/@", *MODEL_VALUES)
    plain = [pattern for pattern in patterns if not any(part in pattern for part in special)]
    if plain:
        match(plain, [path for path, _ in model.module.named_modules() if path])
    select = partial(select_layers, model, patterns=patterns)
    return TorchFeatures(model, select, name, preprocessing, token_grid)
