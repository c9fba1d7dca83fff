"""Errors for arguments that a function does not have, which name the ones that it has."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from vit_tf.common.names import near_names

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Keywords of other libraries by the parameters that they may stand for here.
ALIASES = {
    ("path", "folder"): "out output output_path output_dir out_dir outdir save_path save_dir "
    "filename file html dest",
    ("layers",): "layer block blocks layer_name layer_names target_layer target_layers",
    ("classes", "class_names"): "target targets class_index class_idx class_id target_class "
    "class_name label_names",
    ("k",): "n_neighbors num_neighbors n_neighbours top_k topk num_images",
    ("images", "train"): "data dataset x inputs photos photo image test test_data",
    ("model", "models"): "net network features",
    ("samples",): "n_samples num_samples n_steps steps",
    ("noise",): "stdevs sigma std",
}
# Keywords of other libraries that no parameter stands for, and what to write.
REMEDIES = {
    **dict.fromkeys(
        ("head", "heads", "head_index"), "Results have an axis of heads: result.sel(head=0)"
    ),
    "batch_size": "Images are batched as a tf.data.Dataset: "
    "tf.data.Dataset.from_tensor_slices(images).batch(64)",
    **dict.fromkeys(
        ("save", "savefig", "fname"), "Save it by analysis.plot(result).figure.savefig(path)"
    ),
    **dict.fromkeys(("figsize", "dpi"), "Draw in axes of that size: plt.subplots(figsize=...)[1]"),
    **dict.fromkeys(
        ("head_fusion", "discard_ratio"),
        "Heads are averaged, and attention is not thresholded",
    ),
    "pretrained": "A name opens its trained weights; vit_tf.reinitialize(model) randomizes them",
    **dict.fromkeys(
        ("device", "gpu", "num_workers"), "TensorFlow chooses the device; vit_tf.distribute others"
    ),
    **dict.fromkeys(
        ("verbose", "progress"), "Progress is shown in terminals and notebooks, and nowhere else"
    ),
}


def argument_error(
    function_name: str, given: Iterable[str], known: Iterable[str]
) -> TypeError | None:
    """The error for the first argument given that a function does not have and that has a hint."""
    known = list(known)
    for name in given:
        hint = "" if name in known else _hint(name, known)
        if hint:
            hint = hint[0].upper() + hint[1:]
            return TypeError(f"{function_name}() has no argument {name!r}. {hint}")
    return None


def _hint(unknown: str, known: Sequence[str]) -> str:
    """What to write in the place of an argument; empty if nothing is near it."""
    if unknown in REMEDIES:
        return f"{REMEDIES[unknown]}."
    meant = [
        parameter
        for parameters, words in ALIASES.items()
        if unknown in words.split()
        for parameter in parameters
        if parameter in known
    ]
    near = meant[:1] or near_names(unknown, known)
    return f"Did you mean {' or '.join(near)}?" if near else ""


def explain_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a public function so that a call with wrong arguments shows the right ones."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            if explained := argument_error(function.__name__, kwargs, signature.parameters):
                raise explained from None
            shown = str(
                signature.replace(
                    parameters=[
                        parameter.replace(annotation=inspect.Parameter.empty)
                        for parameter in signature.parameters.values()
                    ],
                    return_annotation=inspect.Signature.empty,
                )
            )
            is_list = "models" in signature.parameters and "too many" in str(error)
            hint = "; several models are one list" if is_list else ""
            raise TypeError(
                f"Expected {function.__name__}{shown}. Received: {error}{hint}"
            ) from None
        return function(*args, **kwargs)

    return call
