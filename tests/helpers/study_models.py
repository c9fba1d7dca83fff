"""Models under study from their layers, with what computes them only where it is needed."""

from vit_tf.analysis.figures.models import StudyModel
from vit_tf.features.conversion import as_features
from vit_tf.features.features import ModelFacts
from vit_tf.features.layers import structure_of_outputs
from vit_tf.features.lazy_features import LazyFeatures


def lazy_features(name, layers, grid, make=None, shapes=None, image_size=None):
    """Features whose facts are given; `make` is a function of patterns, as `submodel` is."""
    layers, shapes = tuple(layers), shapes or {}
    facts = ModelFacts(
        name,
        layers,
        shapes,
        structure_of_outputs(layers, shapes),
        grid,
        input_shape=(None, *image_size, 3) if image_size else None,
    )
    return LazyFeatures(facts, lambda: as_features(make("*")))


def study_model_of(
    name, role, key, layers, grid, make=None, *values, shapes=None, image_size=None, **fields
):
    """A `StudyModel` of given layers; further arguments are its fields."""
    features = lazy_features(name, layers, grid, make, shapes, image_size)
    return StudyModel(name, role, key, features, *values, **fields)
