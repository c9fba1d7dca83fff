"""Learning rates and optimizers of the recipes."""

import math

import keras
from keras import ops

from vit_tf.names import choose

register = keras.saving.register_keras_serializable("vit_tf")


@register
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly from 0 to its peak and then falls.

    With `w` warm-up steps of `n` in all and `p = (step - w) / (n - w)`, the rate over its peak is
    `step / w` before step `w`, then `(1 + cos(pi p)) / 2` or `1 - p`, and 0 after step `n`; or, as
    a staircase, 1, 1/10, 1/100 and 1/1000 from step `w`, `0.3 n`, `0.6 n` and `0.9 n` on
    (Kolesnikov et al. 2019, section 3.3); the steps of `"upstream_staircase"` are at `n / 3`,
    `2 n / 3` and `8 n / 9`: epochs 30, 60 and 80 of 90 (the same, section 3.2).

    Args:
        peak: the largest learning rate.
        warmup_steps: number of steps until the peak.
        total_steps: number of steps in all.
        decay: `"cosine"`, `"linear"`, `"staircase"` or `"upstream_staircase"`.
    """

    def __init__(self, peak, warmup_steps, total_steps, decay="cosine"):
        self.peak, self.warmup_steps, self.total_steps = peak, warmup_steps, total_steps
        self.decay = decay
        self._fall = choose("schedule", decay, DECAYS)

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rise = step / max(self.warmup_steps, 1)
        fall = self._fall(step, self.warmup_steps, self.total_steps)
        return self.peak * ops.where(step < self.warmup_steps, rise, fall)

    def get_config(self):
        names = ("peak", "warmup_steps", "total_steps", "decay")
        return {name: getattr(self, name) for name in names}


def _progress(step, warmup, total):
    return ops.clip((step - warmup) / max(total - warmup, 1), 0.0, 1.0)


def _staircase(step, warmup, total, shares=(0.3, 0.6, 0.9)):
    stairs = [ops.cast(step >= round(share * total), "float32") for share in shares]
    return 10.0 ** -sum(stairs)


DECAYS = {
    "cosine": lambda *steps: (1 + ops.cos(math.pi * _progress(*steps))) / 2,
    "linear": lambda *steps: 1 - _progress(*steps),
    "staircase": _staircase,
    "upstream_staircase": lambda *steps: _staircase(*steps, shares=(1 / 3, 2 / 3, 8 / 9)),
}


class _OnSums:
    """Decays kernels only, and clips gradients after their sum over replicas.

    Keras' own optimizers decay whatever they are not told to leave, and forget that on a reload.
    They clip the gradients of each replica before they sum them, so that several replicas train
    differently from one.
    """

    def build(self, variables):
        if not self.built and self.weight_decay:
            self.exclude_from_weight_decay([v for v in variables if v.name != "kernel"])
        super().build(variables)

    def _clip_gradients(self, grads):
        return grads

    def _all_reduce_sum_gradients(self, grads_and_vars):
        grads, variables = zip(*super()._all_reduce_sum_gradients(grads_and_vars), strict=True)
        return list(zip(super()._clip_gradients(list(grads)), variables, strict=True))


@register
class AdamW(_OnSums, keras.optimizers.AdamW):
    """AdamW that decays kernels only and clips the sums of gradients."""


@register
class SGD(_OnSums, keras.optimizers.SGD):
    """SGD that decays kernels only and clips the sums of gradients."""
