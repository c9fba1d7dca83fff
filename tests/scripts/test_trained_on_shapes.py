"""A model trained on the shapes for minutes finds what random ones do not, on every task."""

import numpy as np
import pytest

from vit_tf import analysis, data, load_model, reinitialize, submodel
from vit_tf.scripts import train as train_script

SIDE = 64
RECIPE = f"--data shapes --image-size {SIDE} --patch-size 8 --num-layers 4 --mlp-dim 128"
RECIPE += " --batch-size 64 --epochs 16 --label-smoothing 0 --flip --strategy none"
NUM_KINDS = 8
# By how much the best layer is better than that of every random baseline, at least.
MARGINS = {
    "saliency": 0.1,
    "object purity": 0.1,
    "part purity": 0.12,
    "keypoints": 0.1,
    "propagation": 0.07,
    "k-NN": 0.2,
}


def attention_overlap(model, reference):
    """The largest IoU of the attention of CLS or of the mean query with the masks."""
    weights = submodel(model, "block*/attention/weights")
    return float(
        analysis.attention_saliency(weights, (reference["image"], reference["mask"])).iou.max()
    )


def scores(features, reference, train, videos, pairs):
    """The best layer's score in each task that random features can be given."""
    images, kinds, parts = reference["image"], reference["label"], reference["parts"]
    # Parts are of a kind each, as the "quadruped head" of PartImageNet is: a part of another kind
    # is another part, and so the kind and the half must both show in the features of half a shape.
    halves = np.stack([parts == 1, parts == 2], axis=1), 2 * kinds[:, None] + np.arange(2)
    objects = reference["mask"][:, None], kinds[:, None]
    objects = analysis.object_clustering(features, (images, *objects), NUM_KINDS)
    of_parts = analysis.object_clustering(features, (images, *halves), 2 * NUM_KINDS)
    pck = analysis.keypoint_correspondence(features, pairs, thresholds=(0.1,))
    near = (train["image"], train["label"]), (images, kinds), NUM_KINDS
    return {
        "object purity": float(objects.purity.max()),
        "part purity": float(of_parts.purity.max()),
        "keypoints": float(pck.score.sel(average="point").max()),
        "propagation": float(analysis.label_propagation(features, videos).score.max()),
        "k-NN": float(analysis.knn_accuracy(features, *near, tokens="spatial").sel(top=1).max()),
    }


def measured(model, wrap=lambda features: features):
    """Every score of a model, on annotated shapes; `wrap` puts others in its features' place."""
    reference, train = (
        data.load_shapes(split, image_size=SIDE, take=400) for split in ("test", "train")
    )
    videos = data.load_shape_videos(16, num_frames=8, image_size=SIDE)
    videos = list(zip(videos["image"], videos["index"], strict=True))
    pairs = data.load_shape_pairs(96, image_size=SIDE)
    features = wrap(submodel(model, "embedding", "block*/mlp/sum"))
    values = scores(features, reference, train, videos, pairs)
    # Noise has no shares of attention: random weights stand for it.
    return values | {"saliency": attention_overlap(model, reference)}


@pytest.mark.long
def test_minutes_of_training_beat_the_random_baselines(tmp_path):
    assert train_script.main([*RECIPE.split(), "--out", str(tmp_path)]) == 0
    model = load_model(tmp_path / "model.keras")
    trained = measured(model)
    fresh = [reinitialize(model, seed) for seed in (1, 2)]
    baselines = [measured(copy) for copy in fresh]
    baselines.append(measured(fresh[0], analysis.engine.gaussian_like))
    for task, margin in MARGINS.items():
        random = [values[task] for values in baselines]
        assert trained[task] > max(random) + margin, (task, trained[task], random)
