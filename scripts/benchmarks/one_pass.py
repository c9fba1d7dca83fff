"""Attention distances, skip ratios and mean attention maps of a ViT-S/16 in one pass."""

from vit_tf.scripts.benchmarks import vits
from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.forward_vit import CONFIG
from vit_tf.scripts.benchmarks.weights import images

COUNT = 512  # in batches of 128


def forward():
    """The bare forward pass, by the same engine."""
    from vit_tf import analysis

    model, data = vits.ours(**CONFIG), images(COUNT)

    def run():
        analysis.engine.collect(lambda batch: model(batch), data)

    return run


def ours():
    import vit_tf
    from vit_tf import analysis

    features = vit_tf.submodel(vits.ours(**CONFIG), "*/weights", "*/skip", "*/branch")
    data = images(COUNT)
    requests = {
        "distance": (analysis.attention_distance.statistic(features), features),
        "skips": (analysis.skip_ratio.statistic(features), features),
        "maps": (analysis.mean_attention.statistic(features), features),
    }

    def run():
        totals = analysis.engine.one_pass(requests, data)
        for name, (statistic, _) in requests.items():
            statistic.finish(totals[name])

    return run


CONTEST = Contest(
    f"attention distances, skip ratios and mean attention of ViT-S/16 together, {COUNT} images",
    {"vit_tf": ours, "forward pass": forward},
    (Ratio(("forward pass",), 1.15),),
)
