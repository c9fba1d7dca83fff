"""The layers of a PyTorch module as features: a function of images for every measurement."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from vit_tf.common.names import as_patterns, match
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.features.tokens import TokenGrid

if TYPE_CHECKING:
    from vit_tf.features.module_features import TorchFeatures


def torch_features(
    module: Any,
    *patterns: str | list[str],
    name: str | None = None,
    preprocessing: Preprocessing | None = None,
    token_grid: TokenGrid | None = None,
) -> TorchFeatures:
    """Features of a PyTorch module: a function from images to `{layer: array}`.

    The module runs in inference mode. Afterwards, it is in the same state as before: the mode of
    each submodule (frozen batch normalizations stay frozen), its hooks and the state of the random
    numbers are unchanged. Layers are in the order in which they are computed. The first call of a
    submodule has the submodule's name, and the second call has the suffix `@2`, such as `"relu@2"`.

    In the returned arrays, the first axis is the example and the last axis is the channel, as
    elsewhere in this package. These axes are found by following them through the operations of the
    module. If a submodule returns several tensors, only its main tensor is kept, such as `logits`
    or `last_hidden_state`, or else its first tensor.

    Patterns also match some values that no submodule returns. Examples are:

    * `"blocks.0/attention/weights"`: attention weights of shape (example, head, query, key), also
      for fused attention
    * `"blocks.0/attention/heads"`: outputs of the attention heads
    * `"blocks.0/attention/skip"`, `"blocks.0/attention/branch"` and `"blocks.0/attention/sum"`: the
      two terms of a residual sum, and the sum itself; also with `mlp` instead of `attention`

    Args:
        module: `torch.nn.Module` that takes images of shape (example, channel, height, width).
        *patterns: shell patterns for names in `module.named_modules()`, or lists of patterns.
        name: name of the model in results. The default is the name of its class.
        preprocessing: `vit_tf.Preprocessing` of the module's images, which is applied to files and
            8-bit images.
        token_grid: `vit_tf.TokenGrid` of the module's tokens, for measurements that distinguish
            prefix tokens from spatial tokens.

    Returns:
        Callable from images of shape (example, height, width, channel) to a dict from layer to
        array.

    Raises:
        ValueError: if there is no pattern, or if a pattern matches no submodule. The returned
            features raise a ValueError if a matching submodule does not run or returns no tensor.

    Examples:
        features = vit_tf.torch_features(timm.create_model("vit_tiny_patch16_224"), "blocks.*")
        similarity = vit_tf.analysis.cka(features, images)
    """
    # PyTorch is imported only where there is a module of it.
    from vit_tf.features.features import ModelFacts
    from vit_tf.features.module_features import (
        MODEL_VALUES,
        TorchFeatures,
        input_shape_of,
        select_layers,
    )
    from vit_tf.torch_models.traced import as_model

    patterns, model = as_patterns(patterns), as_model(module)
    if not patterns:
        raise ValueError(
            f"Expected patterns for submodules of {model.name}, such as '*' for all of them; "
            "vit_tf.submodel(module) finds its blocks by itself. Received: no pattern"
        )
    # `select_layers` matches the patterns when images come. Here, those of submodules are matched
    # only so that a wrong one raises at once. Values inside a module (with "/"), later calls (with
    # "@") and the values of the whole model have names once the module has run.
    exempt = (*"/@", *MODEL_VALUES)
    of_submodules = [pattern for pattern in patterns if not any(part in pattern for part in exempt)]
    if of_submodules:
        match(of_submodules, [path for path, _ in model.module.named_modules() if path])
    select = partial(select_layers, model, patterns=patterns)
    facts = ModelFacts(
        name=name or model.name,
        grid=token_grid,
        preprocessing=preprocessing,
        input_shape=input_shape_of(model.module),
    )
    return TorchFeatures(model, select, facts)
