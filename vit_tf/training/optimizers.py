"""Learning rates and optimizers of the recipes."""

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from vit_tf.common.backend import Tensor, on_jax
from vit_tf.common.names import lookup

register = keras.saving.register_keras_serializable("vit_tf")

HEAD = r"(^|/)(distillation_)?head/"  # paths of variables of the classification head
ROOT = r"(^|/)root(/|$)"  # and of the convolution that reads the images


@register
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly from 0 to its peak and then falls.

    Let `w` be the number of warm-up steps, `n` the number of all steps and `p = (step - w) / (n -
    w)`. The rate divided by its peak is `step / w` before step `w`. From step `w` on, it depends on
    `decay`:

    * `"cosine"`: `(1 + cos(pi p)) / 2`, and 0 after step `n`.
    * `"linear"`: `1 - p`, and 0 after step `n`.
    * `"constant"`: 1.
    * `"staircase"`: 1 at first, then 1/10, 1/100 and 1/1000 from steps `0.3 n`, `0.6 n` and `0.9 n`
      on (Kolesnikov et al. 2019, section 3.3).
    * `"upstream_staircase"`: the same with steps `n / 3`, `2 n / 3` and `8 n / 9`, that is, epochs
      30, 60 and 80 of 90 (Kolesnikov et al. 2019, section 3.2).
    * `"short_staircase"`: the same with steps `0.4 n`, `0.6 n` and `0.8 n`, that is, steps 200, 300
      and 400 of 500 (BiT's code).
    * `"epoch_cosine"`: the cosine of the whole run, `p = step / n`, as in timm. The rate changes
      between epochs only; the first two epochs have the same rate, as in the code of DeiT.

    Args:
        peak: the largest learning rate.
        warmup_steps: number of steps until the peak.
        total_steps: number of steps in all.
        decay: `"cosine"`, `"linear"`, `"staircase"`, `"short_staircase"`, `"upstream_staircase"`,
            `"constant"` or `"epoch_cosine"`.
        first: learning rate at the beginning of the warm-up.
        last: learning rate at the end of the decay.
        steps_per_epoch: number of steps between two changes of `"epoch_cosine"`.
    """

    def __init__(
        self,
        peak: float,
        warmup_steps: int,
        total_steps: int,
        decay: str = "cosine",
        *,
        first: float = 0.0,
        last: float = 0.0,
        steps_per_epoch: int = 1,
    ):
        self.peak, self.warmup_steps, self.total_steps = peak, warmup_steps, total_steps
        self.decay, self.first, self.last = decay, first, last
        self.steps_per_epoch = steps_per_epoch
        self._fall = lookup("schedule", decay, DECAYS)

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32")
        if self.decay == "epoch_cosine":
            # DeiT sets the rate of an epoch from the number of the epoch before it.
            epoch = ops.floor(step / self.steps_per_epoch)
            step = ops.maximum(epoch - 1.0, 0.0) * self.steps_per_epoch
        rise = self.first + (self.peak - self.first) * step / max(self.warmup_steps, 1)
        fall = self._fall(step, self.warmup_steps, self.total_steps)
        fall = self.last + (self.peak - self.last) * fall
        return ops.where(step < self.warmup_steps, rise, fall)

    def get_config(self) -> dict[str, Any]:
        names = ("peak", "warmup_steps", "total_steps", "decay")
        names += ("first", "last", "steps_per_epoch")
        return {name: getattr(self, name) for name in names}


def _progress(step: Tensor, warmup: int, total: int) -> Tensor:
    return ops.clip((step - warmup) / max(total - warmup, 1), 0.0, 1.0)


def _staircase(
    step: Tensor, warmup: int, total: int, shares: tuple[float, ...] = (0.3, 0.6, 0.9)
) -> Tensor:
    stairs = [ops.cast(step >= round(share * total), "float32") for share in shares]
    return 10.0 ** -sum(stairs)


DECAYS = {
    "cosine": lambda *steps: (1 + ops.cos(math.pi * _progress(*steps))) / 2,
    "linear": lambda *steps: 1 - _progress(*steps),
    "constant": lambda *steps: 1.0,
    "staircase": _staircase,
    "short_staircase": lambda *steps: _staircase(*steps, shares=(0.4, 0.6, 0.8)),
    "epoch_cosine": lambda step, warmup, total: (1 + ops.cos(math.pi * step / total)) / 2,
    "upstream_staircase": lambda *steps: _staircase(*steps, shares=(1 / 3, 2 / 3, 8 / 9)),
}


class _KernelDecay(keras.optimizers.Optimizer):
    """Decays kernels only, and clips gradients after their sum over replicas.

    Keras' own optimizers decay whatever is not excluded, and forget exclusions on a reload.
    They clip the gradients of each replica before they sum them, so that several replicas train
    differently from one. They compute the learning rate anew for the decay of each variable. Where
    gradients are accumulated, their schedules and moving averages count batches; here, updates.

    Keras has no public method for any of these but `build` and `update_step`, so its private ones
    are overridden. A test fails where Keras renames one, which would undo the override in silence.
    """

    def _get_current_learning_rate(self) -> Tensor:
        # `iterations` counts updates. Keras gives schedules its `_iterations`, a count of batches.
        schedule = isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule)
        return self._learning_rate(self.iterations) if schedule else self._learning_rate

    def _update_model_variables_moving_average(
        self, trainable_variables: Sequence[keras.Variable]
    ) -> None:
        momentum, steps = self.ema_momentum, self.gradient_accumulation_steps
        if steps:
            updates = ops.equal((self._iterations + 1) % steps, 0)
            self.ema_momentum = ops.where(updates, momentum, 1.0)
        try:
            super()._update_model_variables_moving_average(trainable_variables)
        finally:
            self.ema_momentum = momentum

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if not self.built and self.weight_decay:
            self.exclude_from_weight_decay([v for v in variables if v.name != "kernel"])
        super().build(variables)

    def _clip_gradients(self, grads: list) -> list:
        return super()._clip_gradients(grads) if on_jax() else grads

    def _all_reduce_sum_gradients(self, grads_and_vars: Iterable[tuple]) -> list[tuple]:
        grads, variables = zip(*super()._all_reduce_sum_gradients(grads_and_vars), strict=True)
        return list(zip(super()._clip_gradients(list(grads)), variables, strict=True))

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        if not self.weight_decay:
            return
        if on_jax():
            super()._apply_weight_decay(variables)
            return
        decayed = [v.value for v in variables if self._use_weight_decay(v)]
        _shrink_each(self._distribution_strategy, decayed, self.learning_rate * self.weight_decay)


def _shrink_each(strategy: Any, variables: Sequence[Any], share: Tensor) -> None:
    """Takes a share of each variable off it, on every replica."""
    import tensorflow as tf

    def shrink(variable: Any, share: Tensor) -> None:
        variable.assign_sub(variable * tf.cast(share, variable.dtype))

    def update(distribution: Any, variables: Sequence[Any], share: Tensor) -> None:
        for variable in variables:
            distribution.extended.update(variable, shrink, args=(share,), group=False)

    # As Keras' own optimizers do: the public `merge_call` fails under strategies that need none.
    tf.__internal__.distribute.interim.maybe_merge_call(update, strategy, variables, share)


class _Adaptive(_KernelDecay):
    """What `AdamW` and `Muon` share: AdamW's update, and a learning rate for each block.

    On TensorFlow the update is one operation, which passes over a variable and its moments once.
    Keras forms it of ten. `epsilon` is added to the root of the second moment before or after its
    correction of the bias.
    """

    # Names of the attributes with the decay rates of AdamW's moments, and with weight decays.
    _betas: tuple[str, str]
    _decays: tuple[str, ...]

    def __init__(
        self,
        *args: Any,
        corrected_epsilon: bool = False,
        layer_decay: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.corrected_epsilon, self.layer_decay = corrected_epsilon, layer_decay
        self._factors = None

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.layer_decay is not None:
            factors = layer_factors([v.path for v in variables], self.layer_decay)
            self._factors = [factors[v.path] for v in variables]
        super().build(variables)

    def _factor(self, variable: keras.Variable) -> float:
        """What the learning rate of a variable is multiplied by."""
        return 1.0 if self._factors is None else self._factors[self._get_variable_index(variable)]

    def _apply_weight_decay(self, variables: Sequence[keras.Variable]) -> None:
        if self._factors is None or not self.weight_decay:
            super()._apply_weight_decay(variables)
            return
        for factor in sorted(set(self._factors)):
            group = [v for v in variables if self._factor(v) == factor]
            # Keras multiplies the decay by the learning rate of the optimizer.
            with self._replaced(**{name: getattr(self, name) * factor for name in self._decays}):
                super()._apply_weight_decay(group)

    def _backend_update_step(
        self,
        grads: Sequence[Tensor],
        trainable_variables: Sequence[keras.Variable],
        learning_rate: Tensor,
    ) -> None:
        scalars: Any = learning_rate
        if not on_jax():
            # Powers of betas are computed once for all variables, and reach `update_step` in place
            # of the learning rate, which Keras hands on as it is.
            step = ops.cast(self.iterations + 1, "float32")
            betas = (getattr(self, name) for name in self._betas)
            scalars = (learning_rate, *(beta**step for beta in betas))
        super()._backend_update_step(grads, trainable_variables, scalars)

    def update_step(self, gradient: Tensor, variable: keras.Variable, scalars: Any) -> None:
        """One variable's update; on TensorFlow, scalars are the rate and the powers of betas."""
        if on_jax():
            # Keras' own update, with the epsilon of this optimizer.
            epsilon = self.epsilon
            if self.corrected_epsilon:
                step = ops.cast(self.iterations + 1, variable.dtype)
                epsilon = epsilon * ops.sqrt(1 - getattr(self, self._betas[1]) ** step)
            with self._replaced(epsilon=epsilon):
                super().update_step(gradient, variable, scalars * self._factor(variable))
            return
        import tensorflow as tf

        learning_rate, *powers = (tf.cast(scalar, variable.dtype) for scalar in scalars)
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        self._update(gradient, variable, learning_rate * self._factor(variable), powers)

    def _update(
        self,
        gradient: Tensor,
        variable: keras.Variable,
        learning_rate: Tensor,
        powers: Sequence[Tensor],
    ) -> None:
        """One variable's update on TensorFlow, with the powers of both betas at this step."""
        raise NotImplementedError

    def _adamw(
        self,
        gradient: Tensor,
        variable: keras.Variable,
        learning_rate: Tensor,
        powers: Sequence[Tensor],
        moments: Any,
    ) -> None:
        """Kingma and Ba 2015, algorithm 1 in the form at the end of section 2."""
        import tensorflow as tf

        epsilon = tf.cast(self.epsilon, variable.dtype)
        betas = [tf.cast(getattr(self, name), variable.dtype) for name in self._betas]
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=moments[0].value.handle,
            v=moments[1].value.handle,
            beta1_power=powers[0],
            beta2_power=powers[1],
            lr=learning_rate,
            beta1=betas[0],
            beta2=betas[1],
            epsilon=epsilon * tf.sqrt(1 - powers[1]) if self.corrected_epsilon else epsilon,
            grad=gradient,
        )

    @contextlib.contextmanager
    def _replaced(self, **values: Any) -> Iterator[None]:
        """Other values of attributes within a `with`."""
        previous = {name: getattr(self, name) for name in values}
        # Past Keras' `__setattr__`, which tracks what is assigned: these values last one call.
        self.__dict__.update(values)
        try:
            yield
        finally:
            self.__dict__.update(previous)

    def get_config(self) -> dict[str, Any]:
        settings = {"corrected_epsilon": self.corrected_epsilon, "layer_decay": self.layer_decay}
        return super().get_config() | settings


@register
class AdamW(_Adaptive, keras.optimizers.AdamW):
    """AdamW that decays kernels only and clips the sums of gradients.

    Args:
        corrected_epsilon: whether `epsilon` is added to the root of the second moment after the
            bias of the moment is corrected, as in algorithm 1 of Kingma and Ba 2015, in optax and
            in PyTorch. The default is before, as in Keras.
        layer_decay: ratio of the learning rate, and so of the decay, of each block to that of the
            block above it. Layers before the blocks (stem, embedding, rotation, the norm before the
            first block) count as one more block below the first, and all other layers as one above
            the last. None for 1.

    Raises:
        ValueError: when it is built, if `layer_decay` is set and no variables belong to blocks.
    """

    _betas = ("beta_1", "beta_2")
    _decays = ("weight_decay",)

    def _update(
        self,
        gradient: Tensor,
        variable: keras.Variable,
        learning_rate: Tensor,
        powers: Sequence[Tensor],
    ) -> None:
        if self.amsgrad:
            keras.optimizers.AdamW.update_step(self, gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        moments = (self._momentums[index], self._velocities[index])
        self._adamw(gradient, variable, learning_rate, powers, moments)


@register
class Muon(_Adaptive, keras.optimizers.Muon):
    """Muon for matrices within a model, and `AdamW` for all other variables.

    The update of a matrix of shape (n, m) is its Nesterov momentum, made orthogonal by five steps
    of a Newton-Schulz iteration and multiplied by `0.2 sqrt(max(n, m))`, so that it suits the
    learning rate and weight decay of AdamW (Liu et al. 2025, https://arxiv.org/abs/2502.16982,
    section 2.2). A convolution's kernel is a matrix of shape (rows * columns * input channels,
    output channels). AdamW updates layers called `head` or `root`, embeddings, norms and biases.
    Arguments are those of `keras.optimizers.Muon`, with one weight decay, and `corrected_epsilon`
    and `layer_decay` of `AdamW`.

    Raises:
        ValueError: when it is built, for variables without a `head` or without other matrices.
    """

    _betas = ("adam_beta_1", "adam_beta_2")
    _decays = ("weight_decay", "adam_weight_decay")

    def __init__(
        self,
        *args: Any,
        weight_decay: float | None = 0.004,
        exclude_layers: Sequence[str] = (HEAD,),
        **kwargs: Any,
    ):
        kwargs |= {"weight_decay": weight_decay, "adam_weight_decay": weight_decay}
        super().__init__(*args, exclude_layers=list(exclude_layers), **kwargs)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        matrices = [variable for variable in variables if not self._should_use_adamw(variable)]
        head = any(re.search(name, v.path) for v in variables for name in self.exclude_layers)
        if not (matrices and head):
            raise ValueError(
                "Expected a model with a layer called 'head' and other layers with kernels, such "
                f"as a ViT, for Muon. Received: variables {[v.path for v in variables]}"
            )
        super().build(variables)

    def _should_use_adamw(self, variable: keras.Variable) -> bool:
        """Whether AdamW updates it; Keras excludes the kernels of convolutions too."""
        excluded = [ROOT, *self.exclude_layers, *(["embedding"] if self.exclude_embeddings else [])]
        is_excluded = any(re.search(pattern, variable.path) for pattern in excluded)
        return variable.name != "kernel" or len(variable.shape) < 2 or is_excluded

    def zeropower_via_newtonschulz5(self, x: Tensor, steps: int) -> Tensor:
        """Keras' iteration, of a kernel as a matrix of inputs and outputs."""
        matrix = ops.reshape(x, (-1, x.shape[-1]))
        return ops.reshape(super().zeropower_via_newtonschulz5(matrix, steps), x.shape)

    def lr_adjust(self, x: Tensor) -> Tensor:
        """Keras' scale, of a kernel as such a matrix."""
        size = max(math.prod(x.shape[:-1]), x.shape[-1])
        return x if self.rms_rate is None else x * (math.sqrt(size) * self.rms_rate)

    def _update(
        self,
        gradient: Tensor,
        variable: keras.Variable,
        learning_rate: Tensor,
        powers: Sequence[Tensor],
    ) -> None:
        index = self._get_variable_index(variable)
        momentum, velocity = self.momentums[index], self.adam_velocities[index]
        if velocity is None:  # Keras keeps a second moment only of what AdamW updates
            self._muon_update_step(gradient, variable, learning_rate, momentum)
        else:
            self._adamw(gradient, variable, learning_rate, powers, (momentum, velocity))


def layer_factors(paths: Sequence[str], decay: float) -> dict[str, float]:
    """Dict from a variable's path to the factor of its rate, `decay` from block to block."""
    blocks = {path: re.search(r"\bblock(\d+)\b", path) for path in paths}
    depths = {path: int(match[1]) + 1 for path, match in blocks.items() if match}
    if not depths:
        raise ValueError(
            "Expected a model of blocks, such as a ViT, for layer_decay. "
            f"Received: variables such as {paths[0]!r}"
        )
    top = max(depths.values()) + 1

    def depth(path: str) -> int:
        before = re.search(r"\b(?:(?:patch_)?embedding|stem|pre_norm|rotation)\b", path)
        return depths.get(path, 0 if before else top)

    return {path: decay ** (top - depth(path)) for path in paths}


@register
class SGD(_KernelDecay, keras.optimizers.SGD):
    """SGD that decays kernels only and clips the sums of gradients."""

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """`m <- momentum m - rate g`, then `w <- w + m`, in one operation if TensorFlow has it."""
        if on_jax():
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        if not self.momentum or self.nesterov:
            return super().update_step(gradient, variable, learning_rate)
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self.momentums[self._get_variable_index(variable)].value.handle,
            lr=tf.cast(learning_rate, variable.dtype),
            grad=gradient,
            momentum=tf.cast(self.momentum, variable.dtype),
        )
