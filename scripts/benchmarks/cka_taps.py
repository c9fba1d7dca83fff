"""Peak memory of CKA on a ViT-S/16 as the number of activations grows."""

from vit_tf.scripts.benchmarks import vits
from vit_tf.scripts.benchmarks.cka import COUNT, TAPS
from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.forward_vit import CONFIG
from vit_tf.scripts.benchmarks.weights import images


def cka_of(tap_names):
    """CKA of these activations of every block."""
    import vit_tf
    from vit_tf import analysis

    taps = [f"block{i:02d}/{tap}" for i in range(12) for tap in tap_names]
    features = vit_tf.submodel(vits.ours(**CONFIG), *taps)
    batch = images(COUNT)

    def run():
        analysis.cka(features, batch)

    return run


CONTEST = Contest(
    f"CKA of 84 activations of ViT-S/16 beside 12 of them, {COUNT} images",
    {
        "84 activations": lambda: cka_of(TAPS),
        "12 activations": lambda: cka_of(TAPS[-1:]),
    },
    (Ratio(("12 activations",), 1.1, "peak", of="84 activations"),),
    rounds=1,
)
