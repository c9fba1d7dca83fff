"""The blocks that Vision Transformers are made of."""

import inspect

import keras
from keras import layers, ops

from vit_tf.edits.recording import Taps
from vit_tf.models.embedding import rotate
from vit_tf.names import lookup

register = keras.saving.register_keras_serializable("vit_tf")


@register
def gelu(x):
    """`x / 2 (1 + erf(x / sqrt(2)))`, the exact form.

    TensorFlow fuses this form with the product before it, as that of Keras, by `erfc`, which takes
    half as long again with its gradient, and is finer where numbers have 8 bits.
    """
    if keras.backend.standardize_dtype(x.dtype) not in ("float32", "float64"):
        return ops.gelu(x, approximate=False)
    return 0.5 * x * (1.0 + ops.erf(x * 0.5**0.5))


@register
def gelu_tanh(x):
    """`x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, the form of flax, so of Google's ViT."""
    return ops.gelu(x, approximate=True)


@register
def quick_gelu(x):
    """`x sigmoid(1.702 x)`, the form of OpenAI's CLIP."""
    return x * ops.sigmoid(1.702 * x)


def swiglu(x):
    """`silu(a) b` of the halves `a` and `b` of the channels (Shazeer 2020, 2002.05202, eq. 6)."""
    gate, value = ops.split(x, 2, axis=-1)
    return ops.silu(gate) * value


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}
# Of twice as many channels as they return.
GATES = {"swiglu": swiglu}


@register
class TokenDense(layers.Dense):
    """A Dense layer of flat (example * token, channel) matrices, which TensorFlow fuses."""

    def call(self, tokens, training=None):
        flat = ops.reshape(tokens, (-1, tokens.shape[-1]))
        return ops.reshape(super().call(flat), (-1, *tokens.shape[1:-1], self.units))

    def quantize(self, mode=None, type_check=True, config=None):
        # Keras leaves subclasses alone, whose call may differ; the product is the same here.
        super().quantize(mode, type_check=False, config=config)


@register
class LayerNormalization(layers.LayerNormalization):
    """Layer normalisation (Ba et al. 2016, equation 4) of the last axis, in float32 at least.

    The result is that of `keras.layers.LayerNormalization`. The gradient is the closed form, which
    passes over the tokens about half as often as that of the single operations. A file names the
    weights of a layer by its class: so this one is called as that of Keras.
    """

    def call(self, tokens):
        dtype = keras.backend.result_type(tokens.dtype, "float32")
        numbers = (ops.cast(x, dtype) for x in (tokens, self.gamma, self.beta))
        return ops.cast(_layer_norm(self.epsilon)(*numbers), self.compute_dtype)


def _layer_norm(epsilon):
    """`gamma n + beta` of `n = (x - mean(x)) r`, `r = 1 / sqrt(var(x) + epsilon)`.

    With `d = gamma dy`, the gradient with respect to `x` is `r (d - mean(d) - n mean(d n))`.
    """

    def mean(x):
        return ops.mean(x, axis=-1, keepdims=True)

    @ops.custom_gradient
    def normalize(x, gamma, beta):
        centred = x - mean(x)
        over = ops.rsqrt(mean(ops.square(centred)) + epsilon)
        normal = centred * over

        def gradient(*args, upstream=None):
            dy = args[0] if upstream is None else upstream
            axes = tuple(range(len(dy.shape) - 1))
            by_gamma = ops.sum(dy * normal, axis=axes)
            d = dy * gamma
            by_x = (d - mean(d) - normal * mean(d * normal)) * over
            return by_x, by_gamma, ops.sum(dy, axis=axes)

        return normal * gamma + beta, gradient

    return normalize


NORMS = {"layer": LayerNormalization, "rms": layers.RMSNormalization}


def join_paths(site, skips, skip, branch, taps):
    """Records skip, branch and sum of a site in `taps`; returns the sum.

    The sum is the branch alone where the site is not among the `skips` that are kept.
    """
    if site in skips:
        skip = taps(f"{site}/skip", skip)
    branch = taps(f"{site}/branch", branch)
    return taps(f"{site}/sum", skip + branch if site in skips else branch)


@register
class Block(layers.Layer):
    """A pre-norm Transformer block: self-attention, then an MLP, each with a skip to remove.

    Called on tokens of shape (example, token, channel), on a bias of shape (head, query, key) to
    add to the attention scores where there is one, and on the factors of a `Rotation` of queries
    and keys where there is one; returns a dict of every intermediate,
    named `"attention/..."` and `"mlp/..."`, of which `"mlp/sum"` goes on to the next block.

    Args:
        num_heads: number of attention heads.
        hidden_dim: number of channels of a token; a multiple of `num_heads`.
        mlp_dim: number of hidden units of the MLP.
        skips: the sites, of `("attention", "mlp")`, that keep their skip.
        dropout_rate: share of channels dropped after each projection of a branch.
        stochastic_depth: share of the examples whose branches are dropped in training (Huang et al.
            2016, https://arxiv.org/abs/1603.09382).
        activation: form of the MLP's GELU: `"gelu"`, `"gelu_tanh"` or `"quick_gelu"`; or
            `"swiglu"`, of an MLP that expands to twice `mlp_dim` for a gate and what it gates.
        epsilon: added to the variance by both normalisations.
        key_bias: whether the projection to keys has a bias.
        layer_scale: first value of a learned factor per channel at the end of either branch
            (Touvron et al. 2021, CaiT, equation 4); None leaves it out.
        sub_norm: the sites, of `("attention", "mlp")`, that have a normalisation before the last
            projection of their branch, of what the taps `heads` and `hidden` hold (Wang et al.
            2022, https://arxiv.org/abs/2210.06423, sub-LayerNorm).
        norm: `"layer"`, or `"rms"` for normalisations by the root mean square alone (Zhang and
            Sennrich 2019, https://arxiv.org/abs/1910.07467).

    Raises:
        ValueError: for sizes that do not fit each other or an unknown activation.
    """

    sites = ("attention", "mlp")

    def __init__(
        self,
        num_heads,
        hidden_dim,
        mlp_dim,
        skips=sites,
        dropout_rate=0.0,
        activation="gelu",
        epsilon=1e-6,
        key_bias=True,
        layer_scale=None,
        sub_norm=(),
        norm="layer",
        stochastic_depth=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if hidden_dim % num_heads:
            raise ValueError(
                "Expected hidden_dim to be a multiple of num_heads. "
                f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
            )
        self.num_heads, self.hidden_dim, self.mlp_dim = num_heads, hidden_dim, mlp_dim
        self.skips, self.dropout_rate = tuple(skips), dropout_rate
        self.activation, self.epsilon = activation, epsilon
        self.key_bias, self.layer_scale = key_bias, layer_scale
        self.sub_norm, self.norm = tuple(sub_norm), norm
        normalization = lookup("norm", norm, NORMS)
        lookup("activation", activation, ACTIVATIONS | GATES)
        self.gate, gelu = GATES.get(activation), ACTIVATIONS.get(activation)

        def dense(units, name, **options):
            return TokenDense(units, dtype=self.dtype_policy, name=name, **options)

        def norm(name):
            return normalization(epsilon=epsilon, dtype=self.dtype_policy, name=name)

        self.attention_norm = norm("attention_norm")
        self.query = dense(hidden_dim, "query")
        self.key = dense(hidden_dim, "key", use_bias=key_bias)
        self.value = dense(hidden_dim, "value")
        self.out = dense(hidden_dim, "out")
        self.mlp_norm = norm("mlp_norm")
        # As in the code of the ViT paper, where no bias of an MLP starts at 0.
        small = keras.initializers.RandomNormal(stddev=1e-6)
        units = 2 * mlp_dim if self.gate else mlp_dim
        self.expand = dense(units, "expand", activation=gelu, bias_initializer=small)
        self.contract = dense(hidden_dim, "contract", bias_initializer=small.clone())
        self.heads_norm = norm("heads_norm") if "attention" in self.sub_norm else None
        self.hidden_norm = norm("hidden_norm") if "mlp" in self.sub_norm else None
        self.dropout = layers.Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.stochastic_depth, self.drop_branch = stochastic_depth, None
        if stochastic_depth:
            settings = {"noise_shape": (None, 1, 1), "dtype": self.dtype_policy}
            self.drop_branch = layers.Dropout(stochastic_depth, **settings, name="drop_branch")

    @property
    def taps(self):
        """Names of the intermediates, in the order in which they are computed."""
        whats = {
            "attention": ("norm", "weights", "heads", "skip", "branch", "sum"),
            "mlp": ("norm", "hidden", "skip", "branch", "sum"),
        }
        return tuple(
            f"{site}/{what}"
            for site in self.sites
            for what in whats[site]
            if what != "skip" or site in self.skips
        )

    def build(self, input_shape):
        for layer in (self.attention_norm, self.query, self.key, self.value, self.out):
            layer.build(input_shape)
        for layer in (self.mlp_norm, self.expand):
            layer.build(input_shape)
        hidden_shape = (*input_shape[:-1], self.mlp_dim)
        self.contract.build(hidden_shape)
        if self.heads_norm:
            self.heads_norm.build(input_shape)
        if self.hidden_norm:
            self.hidden_norm.build(hidden_shape)
        self.attention_scale = self._add_scale("attention_scale")
        self.mlp_scale = self._add_scale("mlp_scale")

    def _add_scale(self, name):
        if self.layer_scale is None:
            return None
        first = keras.initializers.Constant(self.layer_scale)
        return self.add_weight(shape=(self.hidden_dim,), initializer=first, name=name)

    def call(self, tokens, bias=None, rotation=None, training=None):
        taps = Taps(self.name)
        x = taps("attention/norm", self.attention_norm(tokens))
        query, key, value = map(self._split, (self.query(x), self.key(x), self.value(x)))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        scores = ops.matmul(query * query.shape[-1] ** -0.5, ops.swapaxes(key, 2, 3))
        scores = ops.cast(scores, "float32")
        if bias is not None:
            scores = scores + ops.cast(bias, "float32")
        weights = taps("attention/weights", ops.softmax(scores))
        heads = ops.matmul(ops.cast(weights, value.dtype), value)
        heads = taps("attention/heads", ops.swapaxes(heads, 1, 2))
        x = ops.reshape(heads, (-1, *tokens.shape[1:]))
        x = self.out(self.heads_norm(x) if self.heads_norm else x)
        branch = self._end_branch(x, self.attention_scale, training)
        x = join_paths("attention", self.skips, tokens, branch, taps)

        y = taps("mlp/norm", self.mlp_norm(x))
        y = self.expand(y)
        y = taps("mlp/hidden", self.gate(y) if self.gate else y)
        y = self.dropout(y, training=training)
        y = self.contract(self.hidden_norm(y) if self.hidden_norm else y)
        branch = self._end_branch(y, self.mlp_scale, training)
        join_paths("mlp", self.skips, x, branch, taps)
        return taps.values

    def _split(self, x):
        """(example, token, channel) to (example, head, token, channel of the head)."""
        x = ops.reshape(x, (-1, x.shape[1], self.num_heads, x.shape[-1] // self.num_heads))
        return ops.swapaxes(x, 1, 2)

    def _end_branch(self, x, scale, training):
        x = self.dropout(x, training=training)
        x = x if scale is None else x * scale
        return self.drop_branch(x, training=training) if self.drop_branch else x

    def get_config(self):
        names = ("num_heads", "hidden_dim", "mlp_dim", "skips", "dropout_rate", "stochastic_depth")
        names += ("activation", "epsilon", "key_bias", "layer_scale", "sub_norm", "norm")
        return super().get_config() | {name: getattr(self, name) for name in names}


def block_sites(num_layers):
    """Names of the sites of `num_layers` blocks, in depth order: `"block00/attention"`, ..."""
    return [f"block{i:02d}/{site}" for i in range(num_layers) for site in Block.sites]


def make_blocks(config, removed, **more):
    """A list of blocks `block00`, ... of a model's configuration; `removed` sites have no skip.

    The rate of stochastic depth rises linearly from 0 in the first block to the whole in the last.
    """
    own = inspect.signature(Block.__init__).parameters
    arguments = {name: value for name, value in config.items() if name in own} | more
    blocks = []
    for name in (f"block{i:02d}" for i in range(config["num_layers"])):
        skips = [site for site in Block.sites if f"{name}/{site}" not in removed]
        depth = len(blocks) / max(config["num_layers"] - 1, 1)
        arguments["stochastic_depth"] = depth * config.get("stochastic_depth", 0.0)
        blocks.append(Block(skips=skips, name=name, **arguments))
    return blocks


def encoder_size(num_layers, num_heads, hidden_dim, mlp_dim):
    """The arguments of a model that are the size of its encoder."""
    return {
        "num_layers": num_layers,
        "num_heads": num_heads,
        "hidden_dim": hidden_dim,
        "mlp_dim": mlp_dim,
    }


def check_pooling(pooling):
    """Raises a ValueError unless `pooling` is `"cls"` or `"gap"`."""
    if pooling not in ("cls", "gap"):
        raise ValueError(f"Expected pooling to be 'cls' or 'gap'. Received: pooling={pooling!r}")
