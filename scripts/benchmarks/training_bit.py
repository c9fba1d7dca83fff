"""A training step of a BiT-R50x1."""

from vit_tf.scripts.benchmarks import forward_bit
from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.training import keras_step, torch_step

BATCH = 8

CONTEST = Contest(
    f"training step, BiT-R50x1, 224 px, {BATCH} images",
    {
        "vit_tf": lambda: keras_step(forward_bit.our_model(), BATCH, 224, 1000),
        "Hugging Face": lambda: torch_step(forward_bit.hugging_face_model(), BATCH, 224, 1000),
    },
    (Ratio(("Hugging Face",), 0.75),),
)
