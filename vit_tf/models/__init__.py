"""Models: one architecture a file, each intermediate named where it is computed.

The import of this package registers its models, and the layers of `vit_tf.features`, with Keras:
`keras.saving.load_model` opens a file only if the classes in it are registered.
"""

from vit_tf.features import (
    attention_weights as attention_weights,
    recorder as recorder,
    scores as scores,
    submodels as submodels,
)

from .beit import BEiT as BEiT
from .bit import BiT as BiT
from .clip import CLIPViT as CLIPViT
from .distilled import DistilledViT as DistilledViT
from .hybrid import HybridViT as HybridViT
from .mixer import Mixer as Mixer
from .rotary import RotaryViT as RotaryViT
from .siglip import SigLIPViT as SigLIPViT
from .vit import ViT as ViT
