"""Linear probes by gradient descent: softmax classifiers of every layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from ..engine.front import measurement
from ..engine.pooling import pooled_statistic, require_labels
from ..engine.results import ALL, CLS, SPATIAL, provenance
from ..engine.stream import one_pass
from ..engine.tokens import grid_of
from ..engine.types import LabelledImages, Model
from .softmax_probes import fit_probes, probe_places, score


@measurement("outputs")
def linear_probe(
    features: Model,
    train: LabelledImages,
    test: LabelledImages,
    num_classes: int | None = None,
    *,
    tokens: str | Sequence[str] | None = None,
    batch_norm: bool | Sequence[bool] = (False, True),
    epochs: int = 20,
    batch_size: int = 256,
    learning_rate: float = 2.0,
    seed: int = 0,
) -> xr.DataArray:
    """Test accuracy of a softmax classifier trained by gradient descent on every layer.

        logits = W x / r + b,    r^2 = mean of |x|^2 over the training images,

    of pooled features x of the frozen model, or of these after batch normalisation without scale
    and shift (He et al. 2021, MAE, appendix A.1; Walmer et al. 2023, section E.4 and table 6).
    SGD with momentum 0.9, no weight decay and a cosine decay to 0, as in the linear evaluation of
    Caron et al. 2021 (DINO, `eval_linear.py`); W and b start at 0. To divide the features of a
    layer by one number r is to divide the learning rate of W by r^2: the curvature of the loss is
    then at most 1, and one learning rate, not chosen for each probe, serves layers of any size.

    All probes are one Keras model. Its loss is the sum of theirs, and no step of a weight depends
    on another probe's, so that each ends as if it were trained alone. The pooled features of all
    images are kept, of shape (example, channel) for each layer and choice of tokens.

    Args:
        features, train, test, num_classes: as in `vit_tf.analysis`.
        tokens: what is classified: the `"cls"` token, or the mean of the `"spatial"` tokens or of
            `"all"`; one word or several. None is `("cls", "spatial")` for a model with a CLS token
            and `"all"` for others. The `token_grid` of the features separates these.
        batch_norm: False, True or both. It takes the statistics of the batch while training, and
            those of all training images afterwards.
        epochs: passes over the training images.
        batch_size: examples of a step; the remainder of each epoch is left out.
        learning_rate: the first one of a batch of 256; it is proportional to the batch.
        seed: of the order of the examples.

    Returns:
        DataArray accuracy of shape (layer, tokens, batch_norm). The coordinate `training_loss` of
        the same shape is the mean cross-entropy of the trained probe over the training images.

    Raises:
        ValueError: for unknown `tokens`, labels outside the classes, features that are not finite
            or all zero, or settings that are not above 0.

    Examples:
        >>> train, test = (images[:16], labels[:16]), (images[16:], labels[16:])
        >>> accuracy = analysis.linear_probe(vit, train, test, epochs=2)
        >>> accuracy.dims
        ('layer', 'tokens', 'batch_norm')
        >>> accuracy.tokens.values.tolist()
        ['cls', 'spatial']
        >>> ax = analysis.plot(accuracy)

    See also:
        `plots.plot_linear_probe`, `ridge_probe`, `knn_accuracy`; page
        measurements/probes/linear-probe.md.
    """
    settings = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    _require_positive(settings)
    if tokens is None:
        grid = grid_of(features, None)
        tokens = (CLS, SPATIAL) if grid is not None and getattr(grid, "prefix", 0) else ALL
    tokens, batch_norm = (np.atleast_1d(choice).tolist() for choice in (tokens, batch_norm))
    fitted = _pooled(features, train, tokens, num_classes, "training")
    tested = _pooled(features, test, tokens, num_classes, "test")
    return fit_linear_probe(
        features, fitted, tested, num_classes, batch_norm=batch_norm, **settings, seed=seed
    )


def fit_linear_probe(
    features,
    fitted,
    tested,
    num_classes,
    *,
    layers=None,
    batch_norm=(False, True),
    epochs=20,
    batch_size=256,
    learning_rate=2.0,
    seed=0,
):
    """`linear_probe` of features that were pooled before.

    Args:
        features: the callable that was pooled; its name is noted.
        fitted, tested: list of `Pooled`, one for each choice of tokens, of the training and of the
            test images.
        layers: names of those that are probed; by default those of the first.
        num_classes, batch_norm, epochs, batch_size, learning_rate, seed: as for `linear_probe`.
    """
    layers = list(layers or fitted[0].layers)
    tokens = [pooled.tokens for pooled in fitted]
    for what, pooled in (("training", fitted), ("test", tested)):
        require_labels(pooled[0].labels, num_classes, what)
    (x, labels), (x_test, test_labels) = _rows(fitted, layers), _rows(tested, layers)
    settings = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    model = fit_probes(x, labels, num_classes, batch_norm, **settings, seed=seed)
    _, loss = score(model, x, labels)
    accuracy, _ = score(model, x_test, test_labels)
    places = probe_places(x, batch_norm)
    coords = {"layer": layers, "tokens": tokens, "batch_norm": list(batch_norm)}
    result = _labelled(accuracy, loss, places, coords)
    return result.assign_attrs(
        provenance(
            features,
            len(test_labels),
            tested[0].batches,
            long_name="test accuracy of a linear probe",
            units="1",
            estimator="softmax regression by SGD with momentum 0.9 and cosine decay",
            train_examples=len(labels),
            num_classes=num_classes,
            epochs=epochs,
            step_examples=min(batch_size, len(labels)),
            learning_rate=learning_rate,
            seed=seed,
        )
    )


def _pooled(features, data, tokens, num_classes, what):
    """The `Pooled` features of each choice of tokens, from one pass."""
    grid = grid_of(features, None)
    requests = {choice: (pooled_statistic(choice, grid), features) for choice in tokens}
    totals = one_pass(requests, data, f"linear probes: {what} images")
    pooled = [requests[name][0].finish(total) for name, total in totals.items()]
    require_labels(pooled[0].labels, num_classes, what)
    return pooled


def _rows(pooled, layers):
    """Features by (layer, tokens), and the labels."""
    x = {(layer, of.tokens): of.layers[layer] for of in pooled for layer in layers}
    return x, pooled[0].labels.astype(np.int64)


def _labelled(accuracy, loss, places, coords):
    """The result of `linear_probe`, without its attributes."""
    values = np.empty((2, *map(len, coords.values())))
    names = list(coords.values())
    for value, ((layer, tokens), norm) in zip(
        zip(accuracy, loss, strict=True), places, strict=True
    ):
        at = tuple(of.index(name) for of, name in zip(names, (layer, tokens, norm), strict=True))
        values[(slice(None), *at)] = value
    result = xr.DataArray(values[0], coords, tuple(coords), name="accuracy")
    return result.assign_coords(training_loss=(tuple(coords), values[1]))


def _require_positive(settings):
    wrong = {name: value for name, value in settings.items() if not value > 0}
    if wrong:
        received = ", ".join(f"{name}={value}" for name, value in wrong.items())
        raise ValueError(f"Expected {', '.join(wrong)} above 0. Received: {received}")
