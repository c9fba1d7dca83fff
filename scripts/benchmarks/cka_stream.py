"""CKA of 84 activations of a ViT-S/16 over several batches, beside what it cannot do without."""

from functools import partial

from vit_tf.scripts.benchmarks.cka import COUNT, forward, ours, products
from vit_tf.scripts.benchmarks.contest import Contest, Ratio

BATCHES = 4

CONTEST = Contest(
    f"CKA of all 84 activations of ViT-S/16, 224 px, {BATCHES} batches of {COUNT} images",
    {
        "vit_tf": partial(ours, BATCHES),
        "forward pass": partial(forward, BATCHES),
        "products": partial(products, BATCHES),
    },
    (Ratio(("forward pass", "products"), 1.25),),
    rounds=4,
)
