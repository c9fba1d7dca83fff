"""The layers of a PyTorch module as features: a function of images for every measurement."""

import numpy as np

from vit_tf.names import as_patterns, match


def torch_features(module, *patterns, name=None, preprocessing=None, token_grid=None):
    """Features of a PyTorch module: a function from images to `{layer: array}`.

    Forward hooks read the outputs of its submodules, without gradients and in evaluation mode; a
    measurement runs the function eagerly. A four-dimensional output is a feature map (example,
    channel, row, column) and becomes (example, row, column, channel), as elsewhere in this package,
    except for attention weights of shape (example, head, query, key): the outputs of submodules
    named `attn_drop` or `attention_dropout`, or whose name ends in `weights`.

    Args:
        module: `torch.nn.Module` of images of shape (example, channel, height, width).
        *patterns: shell patterns for names in `module.named_modules()`, or lists of them.
        name: name of the model in results; by default that of its class.
        preprocessing: the `vit_tf.Preprocessing` of its images, for files and 8-bit images.
        token_grid: the `vit_tf.TokenGrid` of its tokens, for measurements that distinguish prefix
            tokens.

    Returns:
        Callable from images of shape (example, height, width, channel).

    Raises:
        ValueError: for a pattern that matches no submodule.

    Examples:
        features = vit_tf.torch_features(timm.create_model("vit_tiny_patch16_224"), "blocks.*")
        similarity = vit_tf.analysis.cka(features, images)
    """
    patterns = as_patterns(patterns)
    layers = match(patterns, [path for path, _ in module.named_modules() if path])
    depths = {pattern.count(".") for pattern in patterns}  # "blocks.*": not the layers inside
    outer = [path for path in layers if path.count(".") in depths]
    return TorchFeatures(module, outer or layers, name, preprocessing, token_grid)


class TorchFeatures:
    """The function that `torch_features` returns."""

    eager = True  # no graph can hold it

    def __init__(self, module, layers, name, preprocessing, token_grid):
        self.module, self.taps = module, tuple(layers)
        self.name = name or type(module).__name__
        self.preprocessing, self.token_grid = preprocessing, token_grid

    def __call__(self, images):
        import torch

        modules, outputs, was_training = dict(self.module.named_modules()), {}, self.module.training
        parameter = next(self.module.parameters(), torch.zeros(()))

        def hook(path):
            def keep(module, inputs, output):
                outputs[path] = output[0] if isinstance(output, tuple | list) else output

            return keep

        hooks = [modules[path].register_forward_hook(hook(path)) for path in self.taps]
        images = np.ascontiguousarray(np.moveaxis(np.asarray(images), -1, 1))
        try:
            self.module.eval()
            with torch.no_grad():
                self.module(torch.from_numpy(images).to(parameter.device, parameter.dtype))
        finally:
            self.module.train(was_training)
            for handle in hooks:
                handle.remove()
        return {path: _as_array(path, outputs[path]) for path in self.taps if path in outputs}


def _as_array(path, output):
    """An output as a float32 array, maps with the channels last."""
    values, weights = output.float().cpu().numpy(), ("attn_drop", "attention_dropout", "weights")
    return np.moveaxis(values, 1, -1) if values.ndim == 4 and not path.endswith(weights) else values
