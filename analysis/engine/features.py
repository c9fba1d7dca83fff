"""What a measurement of one's own needs of `vit_tf.features`, under the names of the engine."""

from vit_tf.features.conversion import choose, features_of
from vit_tf.features.features import DerivedFeatures, Features, ModelFacts
from vit_tf.features.noise import gaussian_like

__all__ = ["DerivedFeatures", "Features", "ModelFacts", "choose", "features_of", "gaussian_like"]
