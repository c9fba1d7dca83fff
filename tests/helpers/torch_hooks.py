"""What modules of a PyTorch model put out for images."""

import numpy as np
import torch


def caught(model, modules, images, **options):
    """dict from tap to what modules of a model put out, and the output of the model.

    Args:
        modules: dict from tap to module; of several outputs the first counts.
        images: array of shape (example, height, width, channel).
        options: further arguments of the model.
    """
    values, hooks = {}, []

    def catch(tap):
        def hook(module, inputs, output):
            values[tap] = (output[0] if isinstance(output, tuple) else output).detach().numpy()

        return hook

    for tap, module in modules.items():
        hooks.append(module.register_forward_hook(catch(tap)))
    with torch.no_grad():
        pixels = torch.tensor(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
        output = model(pixels, **options)
    for hook in hooks:
        hook.remove()
    return values, output
