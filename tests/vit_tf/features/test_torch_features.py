"""Values inside PyTorch modules, against hooks written by hand and `torch.autograd`."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import analysis

torch = pytest.importorskip("torch")
nn = torch.nn
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (5, 12, 16, 3)).astype(np.float32)


def as_torch(images):
    return torch.from_numpy(np.moveaxis(images, -1, 1).copy())


def by_hand(module, path, images):
    """The first output of a submodule, copied inside a hook."""
    kept = []
    hook = module.get_submodule(path).register_forward_hook(
        lambda _, inputs, output: kept.append(output.detach().clone())
    )
    with torch.no_grad():
        module.eval()(as_torch(images))
    hook.remove()
    return kept[0].numpy()


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.attn_drop = heads, nn.Dropout(0.1)

    def forward(self, x):
        example, tokens, width = x.shape
        q, k, v = (
            part.reshape(example, tokens, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        x = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(example, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 7), nn.GELU(), nn.Linear(7, width))
        self.norm2, self.norm1 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)  # after what is computed later

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, width=6, heads=2):
        super().__init__()
        self.head, self.norm = nn.Linear(width, 4), nn.LayerNorm(width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(3)])
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, width))

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    return ViT()


def test_values_before_operations_in_place():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3))
    values = vit_tf.torch_features(net, "*")(IMAGES)
    np.testing.assert_array_equal(values["0"], np.moveaxis(by_hand(net, "0", IMAGES), 1, -1))
    assert values["0"].min() < 0
    np.testing.assert_array_equal(values["1"], np.maximum(values["0"], 0))


def test_images_of_one_channel_are_not_written_into():
    class InPlace(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 2, 3)

        def forward(self, x):
            return self.conv(x.sub_(0.5).div_(0.5))

    images = np.random.default_rng(0).uniform(size=(4, 8, 8, 1)).astype(np.float32)
    before, module = images.copy(), InPlace()
    first, second = (vit_tf.torch_features(module, "conv")(images)["conv"] for _ in range(2))
    np.testing.assert_array_equal(images, before)
    np.testing.assert_array_equal(first, second)


def test_a_module_is_left_as_it_was():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    net[1].eval()
    net[0].weight.requires_grad_(False)
    modes, state = [m.training for m in net.modules()], torch.random.get_rng_state()
    features = vit_tf.torch_features(net, "*")
    np.testing.assert_array_equal(features(IMAGES)["2"], features(IMAGES)["1"])  # no dropout
    with tf.GradientTape() as tape:
        images = tf.constant(IMAGES)
        tape.watch(images)
        total = tf.reduce_sum(features(images)["2"])
    assert tape.gradient(total, images).shape == IMAGES.shape
    assert [m.training for m in net.modules()] == modes
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(net[1].running_mean, torch.zeros(4))


class LastChannels(nn.Module):
    """A ConvNeXt-like stem: a map with the channels second, then last, then second again."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.up = nn.Identity()

    def forward(self, x):
        x = self.fc(self.norm(self.conv(x).permute(0, 2, 3, 1)))
        return self.up(x.permute(0, 3, 1, 2))


@pytest.mark.parametrize("size", [(16, 16), (12, 16)])  # of 4 x 4 positions and 4 channels
def test_channels_come_last_where_the_module_has_them_last_or_second(size):
    net, images = LastChannels(), RNG.uniform(-1, 1, (2, *size, 3)).astype(np.float32)
    values = vit_tf.torch_features(net, "*")(images)
    for path, moved in {"conv": 1, "norm": 3, "fc": 3, "up": 1}.items():
        expected = np.moveaxis(by_hand(net, path, images), moved, -1)
        np.testing.assert_array_equal(values[path], expected, err_msg=path)


class TokensFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)  # of (token, example, channel)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.encoder(self.conv(x).flatten(2).permute(2, 0, 1)).mean(0)


def test_blocks_with_tokens_before_examples():
    net = TokensFirst()
    features = vit_tf.torch_features(net, "encoder.layers.*", "*/weights", "*/attention/*")
    values = features(IMAGES)
    for number in range(2):
        path = f"encoder.layers.{number}"
        expected = by_hand(net, path, IMAGES).transpose(1, 0, 2)
        np.testing.assert_allclose(values[path], expected, atol=1e-6)
        weights = values[f"{path}/attention/weights"]
        assert weights.shape == (5, 2, 12, 12)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    query = values["encoder.layers.0/attention/skip"]
    with torch.no_grad():
        x = torch.from_numpy(query.transpose(1, 0, 2).copy())
        expected = net.encoder.layers[0].self_attn(x, x, x, average_attn_weights=False)[1]
    np.testing.assert_allclose(
        values["encoder.layers.0/attention/weights"], expected.numpy(), atol=1e-6
    )


def test_layers_are_in_the_order_of_computation_and_repeated_calls_have_numbers(vit):
    assert list(vit_tf.torch_features(vit, "*", "blocks.0.*")(IMAGES)) == [
        *("patches", "blocks.0.norm1", "blocks.0.attn", "blocks.0.norm2", "blocks.0.mlp"),
        *("norm", "head"),
    ]
    twice = nn.Sequential(relu := nn.ReLU(), nn.Conv2d(3, 4, 3), relu)
    values = vit_tf.torch_features(twice, "0*")(IMAGES)
    assert list(values) == ["0", "0@2"]
    np.testing.assert_array_equal(values["0"], np.maximum(IMAGES, 0))
    assert values["0@2"].shape[-1] == 4


@dataclass
class Output:
    mask: object
    logits: torch.Tensor


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.conv, self.end = nn.Conv2d(3, 4, 3), _Wraps(wrap)
        self.unused, self.group = nn.Conv2d(3, 4, 3), nn.ModuleList([nn.Identity()])

    def forward(self, x):
        return self.end(self.conv(x))


class _Wraps(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(x)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: (None, x),
        lambda x: {"mask": None, "logits": x},
        lambda x: Output(None, x),
        lambda x: [{"hidden": [x]}],
        lambda x: (torch.arange(3), x),
        lambda x: x.to(torch.bfloat16),
    ],
)
def test_the_tensor_of_other_outputs(wrap):
    net = Returns(wrap)
    values = vit_tf.torch_features(net, "end")(IMAGES)["end"]
    np.testing.assert_allclose(values, np.moveaxis(by_hand(net, "conv", IMAGES), 1, -1), rtol=1e-2)


def test_without_patterns_the_error_names_the_call_that_needs_none():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten())
    with pytest.raises(ValueError, match=r"Sequential.*vit_tf\.submodel\(module\)"):
        vit_tf.torch_features(net)


def test_submodules_that_never_run_are_named():
    net = Returns(lambda x: x)
    for pattern in ("unused", "group", "group.0"):
        with pytest.raises(ValueError, match=rf"run.*{pattern}"):
            analysis.cka(vit_tf.torch_features(net, pattern), IMAGES)
    with pytest.warns(UserWarning, match="unused"):
        assert list(vit_tf.torch_features(net, "*")(IMAGES)) == ["conv", "end"]
    with pytest.raises(ValueError, match="end"):
        vit_tf.torch_features(Returns(lambda x: 3), "end")(IMAGES)


def test_fused_attention_is_recorded(vit):
    paths = [f"blocks.{i}.attn" for i in range(3)]
    grid = vit_tf.TokenGrid(3, 4, 1, 4)
    weights = vit_tf.torch_features(vit, "*/weights", "*/heads", "*attention/skip")(IMAGES)
    for path in paths:
        site = path.replace(".attn", "/attention")
        x = by_hand(vit, path.replace("attn", "norm1"), IMAGES)
        with torch.no_grad():
            q, k, v = np.split(vit.get_submodule(path).qkv(torch.from_numpy(x)).numpy(), 3, axis=-1)
        q, k, v = (a.reshape(5, 13, 2, 3).astype(np.float64) for a in (q, k, v))
        scores = np.exp(np.einsum("bqhc,bkhc->bhqk", q, k) / np.sqrt(3))
        expected = scores / scores.sum(-1, keepdims=True)
        np.testing.assert_allclose(weights[f"{site}/weights"], expected, atol=1e-6)
        heads = np.einsum("bhqk,bkhc->bqhc", expected, v)
        np.testing.assert_allclose(weights[f"{site}/heads"], heads, atol=1e-6)
    features = vit_tf.torch_features(vit, "*/weights", token_grid=grid)
    assert analysis.attention_distance(features, IMAGES).shape == (3, 2)


def test_residual_sites_add_up(vit):
    features = vit_tf.torch_features(vit, "blocks.*", "*/skip", "*/branch", "*/sum")
    values = features(IMAGES)
    for number in range(3):
        for site in ("attention", "mlp"):
            skip, branch, total = (
                values[f"blocks.{number}/{site}/{what}"] for what in ("skip", "branch", "sum")
            )
            np.testing.assert_allclose(skip + branch, total, atol=1e-6)
        np.testing.assert_array_equal(total, values[f"blocks.{number}"])
    branch = by_hand(vit, "blocks.1.attn", IMAGES)
    np.testing.assert_allclose(values["blocks.1/attention/branch"], branch, atol=1e-6)
    assert analysis.skip_ratio(features, IMAGES)["norm_ratio"].shape == (6, 13)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traced_modules(vit):
    traced = torch.jit.trace(vit.eval(), as_torch(IMAGES))
    for patterns in (["blocks.*", "norm"], ["patches", "blocks.0.mlp"]):
        values = vit_tf.torch_features(traced, *patterns)(IMAGES)
        expected = vit_tf.torch_features(vit, *patterns)(IMAGES)
        assert list(values) == list(expected)
        for path in expected:
            np.testing.assert_allclose(values[path], expected[path], atol=1e-6, err_msg=path)
    scripted = torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()))
    with pytest.raises(ValueError, match="RecursiveScriptModule"):
        vit_tf.torch_features(scripted, "0")(IMAGES)


def test_a_compiled_or_parallel_module_is_measured_as_its_own(vit):
    expected = vit_tf.torch_features(vit, "blocks.*")(IMAGES)
    # torch.compile itself crashes in one process with TensorFlow; this is what it returns.
    compiled = nn.Module()
    compiled._orig_mod = vit
    for wrapped in (compiled, nn.DataParallel(vit)):
        values = vit_tf.torch_features(wrapped, "blocks.*")(IMAGES)
        assert list(values) == list(expected)
        np.testing.assert_array_equal(values["blocks.2"], expected["blocks.2"])


def test_gradients_are_those_of_autograd(vit):
    """Of scores by all layers, also those that are not on one path, eagerly and in a graph."""
    features = vit_tf.torch_features(vit, "blocks.?", "*/weights", "*attention/branch", "head")

    def gradients(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            values = features(images)
            scores = tf.reduce_sum(values["head"][:, 1] ** 2)
        return tape.gradient(scores, {"images": images, **values})

    images = as_torch(IMAGES).requires_grad_(True)
    kept, hooks = {}, []
    for path in ("blocks.0", "blocks.1", "blocks.1.attn", "blocks.2"):
        hooks.append(
            vit.get_submodule(path).register_forward_hook(
                lambda _, inputs, output, path=path: kept.update({path: output})
            )
        )
    total = (vit.eval()(images)[:, 1] ** 2).sum()
    of_images, *of_layers = torch.autograd.grad(total, [images, *kept.values()])
    for hook in hooks:
        hook.remove()
    names = {path: path.replace(".attn", "/attention/branch") for path in kept}
    for run in (gradients, tf.function(gradients)):
        results = run(tf.constant(IMAGES))
        expected = of_images.numpy().transpose(0, 2, 3, 1)
        np.testing.assert_allclose(results["images"], expected, atol=1e-5 * abs(expected).max())
        for path, gradient in zip(kept, of_layers, strict=True):
            scale = float(gradient.abs().max())
            np.testing.assert_allclose(results[names[path]], gradient.numpy(), atol=1e-5 * scale)
        assert np.abs(results["blocks.0/attention/weights"]).max() > 0


@pytest.mark.parametrize(
    ("classes", "activation"),
    [
        (4, nn.Softmax(-1)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1, nn.Sigmoid()), (4, nn.Sigmoid()), (4, nn.LogSoftmax(-1)))
        ),
    ],
)
def test_scores_are_those_before_probabilities(classes, activation):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(560, classes), activation)
    values = vit_tf.torch_features(net, "2", "logits")(IMAGES)
    # The two classes of one sigmoid are scored by their log-odds.
    both = np.concatenate([-values["2"], values["2"]], axis=1)
    expected = both if classes == 1 else values["2"]
    np.testing.assert_array_equal(values["logits"], expected)
    gradients = analysis.input_gradients(net, IMAGES, classes=[1])
    images = as_torch(IMAGES).requires_grad_(True)
    (of_images,) = torch.autograd.grad(net[:3](images)[:, -1 if classes == 1 else 1].sum(), images)
    by_hand = of_images.permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(gradients.values[:, 0], by_hand, atol=1e-6)


def test_each_class_of_sigmoids_has_its_own_probability_and_gradient():
    for classes in (1, 4):
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(560, classes)
        net = nn.Sequential(*layers, nn.Sigmoid())
        with torch.no_grad():
            p = net(as_torch(IMAGES)).double().numpy()
        expected = np.concatenate([1 - p, p], axis=1) if classes == 1 else p
        predicted = analysis.predict(net, IMAGES)
        actual = predicted.probability.values
        # The most probable class comes first.
        np.testing.assert_allclose(actual, -np.sort(-expected, axis=1), rtol=1e-5)
        images = as_torch(IMAGES).requires_grad_(True)
        (gradient,) = torch.autograd.grad(net[:3](images)[:, 0].sum(), images)
        sign = -1 if classes == 1 else 1
        actual = analysis.input_gradients(net, IMAGES, classes=[0]).values[:, 0]
        np.testing.assert_allclose(actual, sign * gradient.permute(0, 2, 3, 1), atol=1e-6)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize(
    "end",
    [
        lambda p: p * 100,
        lambda p: 100 * p,
        lambda p: torch.clamp(p, min=1e-7, max=1),
        lambda p: (p + 1e-12).log(),
    ],
)
def test_scores_are_those_before_rescaled_probabilities(kind, end):
    probabilities = {"softmax": lambda z: z.softmax(-1), "sigmoid": torch.sigmoid}[kind]
    assert_scored_by_logits(lambda z: end(probabilities(z)), probabilities)


def test_scores_are_those_before_logarithms_of_sigmoids():
    assert_scored_by_logits(nn.functional.logsigmoid, torch.sigmoid)


def assert_scored_by_logits(end, probabilities):
    class Classifier(nn.Sequential):
        def forward(self, x):
            return end(super().forward(x))

    torch.manual_seed(0)
    net = Classifier(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(560, 4))
    images = as_torch(IMAGES).requires_grad_(True)
    logits = nn.Sequential.forward(net, images)
    expected = probabilities(logits).sort(dim=1, descending=True).values.detach()
    found = analysis.predict(net, IMAGES, top=4).probability.values
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), images)
    actual = analysis.input_gradients(net, IMAGES, classes=[1]).values[:, 0]
    np.testing.assert_allclose(actual, gradient.permute(0, 2, 3, 1), atol=1e-6)


def test_probabilities_that_a_module_averages_are_no_logits():
    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (
                nn.Sequential(nn.Flatten(), nn.Linear(12 * 16 * 3, 4)) for _ in range(2)
            )

        def forward(self, x):
            return (self.first(x).softmax(-1) + self.second(x).softmax(-1)) / 2

    torch.manual_seed(0)
    net = Ensemble()
    images = as_torch(IMAGES).requires_grad_(True)
    p = net(images)
    with pytest.warns(UserWarning, match="'logits' of 'Ensemble' holds probabilities"):
        predicted = analysis.predict(net, IMAGES, scores="logits")
    expected = p.sort(dim=1, descending=True).values.detach()
    np.testing.assert_allclose(predicted.probability.values, expected, rtol=1e-5)
    (gradient,) = torch.autograd.grad(p[:, 2].log().sum(), images)
    with pytest.warns(UserWarning, match="gradients are those of their logarithms"):
        actual = analysis.input_gradients(
            net, IMAGES, classes=[2], scores="logits", samples=1, noise=0
        )
    np.testing.assert_allclose(actual.values[:, 0], gradient.permute(0, 2, 3, 1), atol=1e-6)


def softmax_by_hand(x):
    x = torch.exp(x - x.amax(-1, keepdim=True))
    return x / (x.sum(-1, keepdim=True) + 1e-9)


def softmax_in_place(x):
    x = (x - x.max(dim=-1, keepdim=True).values).exp_()
    x /= x.sum(dim=[-1]).unsqueeze(-1)
    return x


@pytest.mark.parametrize(
    ("equation", "softmax"),
    [
        ("bhqk,bhkd->bhqd", softmax_by_hand),
        ("bhqk,bkhd->bqhd", softmax_in_place),
        ("b h s t, b t h c -> b s h c", torch.nn.Softmax(-1)),
        ("bhqk,bdkh->dqbh", softmax_by_hand),
        ("...qk,...kd->...qd", torch.nn.Softmax(-1)),
        ("b...qk,b...kd->bq...d", torch.nn.Softmax(-1)),
        ("bkhd,bhqk->bqhd", softmax_by_hand),
        ("...kd,...qk->...qd", torch.nn.Softmax(-1)),
    ],
)
def test_einsum_of_weights_and_values_is_attention(equation, softmax):
    """Weights and heads, by `@` in float64; each form is called with its axes in its order."""
    whole = equation.replace(" ", "").replace("b...", "bh").replace("q...", "qh")
    operands, result = whole.replace("...", "bh").split("->")
    indices, of_values = sorted(operands.split(","), key=lambda term: bool({"d", "c"} & {*term}))
    is_swapped = operands.startswith(of_values)
    example, head, query, key = indices
    (channel,) = set(of_values) - set(indices)

    class OneSum(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(3, 24), nn.Linear(8, 8)

        def forward(self, x):
            tokens = x.flatten(2).transpose(1, 2)
            q, k, v = self.qkv(tokens).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            weights = softmax(q @ k.transpose(-1, -2))
            v = torch.einsum(f"{example}{head}{key}{channel}->{of_values}", v)
            mean = torch.einsum(equation, *((v, weights) if is_swapped else (weights, v)))
            back = f"{result}->{example}{query}{head}{channel}"
            return self.out(torch.einsum(back, mean).flatten(2))

    torch.manual_seed(0)
    net = OneSum()
    values = vit_tf.torch_features(net, "/weights", "/heads", "*")(IMAGES)
    x = IMAGES.reshape(5, -1, 3).astype(np.float64)
    weight, bias = (parameter.detach().double().numpy() for parameter in net.qkv.parameters())
    q, k, v = np.moveaxis((x @ weight.T + bias).reshape(5, -1, 3, 2, 4), (2, 3), (0, 2))
    logits = q @ np.swapaxes(k, -1, -2)
    weights = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(values["/weights"], weights, rtol=1e-4)
    heads = np.swapaxes(weights @ v, 1, 2)
    np.testing.assert_allclose(values["/heads"], heads, atol=1e-5)
    projected = heads.reshape(5, -1, 8) @ net.out.weight.detach().double().numpy().T
    projected += net.out.bias.detach().double().numpy()
    np.testing.assert_allclose(values["out"], projected, atol=1e-5)


@pytest.mark.slow
def test_submodels_and_interventions_of_a_module(vit):
    """An edit by hooks, by hand and by `intervene`; later edits see what earlier ones changed."""
    features = vit_tf.submodel(vit, "block*/mlp/sum", "logits")
    assert features.taps == (*(f"block0{i}/mlp/sum" for i in range(3)), "logits")
    edits = {"block00/attention/branch": vit_tf.edits.zero, "blocks.1": lambda x: 2 * x}
    edited = vit_tf.intervene(vit, edits, "block02/mlp/sum", "logits")(tf.constant(IMAGES))
    hooks = [
        vit.blocks[0].attn.register_forward_hook(lambda _, inputs, output: 0 * output),
        vit.blocks[1].register_forward_hook(lambda _, inputs, output: 2 * output),
    ]
    expected = by_hand(vit, "blocks.2", IMAGES)
    logits = by_hand(vit, "head", IMAGES)
    for hook in hooks:
        hook.remove()
    np.testing.assert_allclose(edited["block02/mlp/sum"], expected, atol=1e-5)
    np.testing.assert_allclose(edited["logits"], logits, atol=1e-5)
    with pytest.raises(ValueError, match="shape"):
        vit_tf.intervene(vit, {"blocks.1": lambda x: x[:, :1]})(tf.constant(IMAGES))


@pytest.mark.slow
def test_a_head_of_another_size_is_traced_again():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 10 * 14, 7)).eval()
    first = vit_tf.torch_features(model, "2")(IMAGES)["2"]
    model[2] = nn.Linear(4 * 10 * 14, 5)
    second = vit_tf.torch_features(model, "2")(IMAGES)["2"]
    assert first.shape == (5, 7)
    np.testing.assert_allclose(second, by_hand(model, "2", IMAGES), atol=1e-6)
    result = analysis.cka(model, IMAGES, layers=["0", "2"])
    expected = {name: by_hand(model, name, IMAGES) for name in ("0", "2")}
    np.testing.assert_allclose(result.cka, analysis.cka(expected).cka, atol=1e-5)


class Flagged(nn.Module):
    """A module with a condition, whose graph PyTorch cannot flatten."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x, is_doubled: bool = False):
        x = torch.relu(self.conv(x))
        if is_doubled:
            x = x * 2
        return self.head(x.mean((2, 3)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_whose_layers_pytorch_cannot_show_is_refused():
    scripted = torch.jit.script(Flagged().eval())
    with pytest.raises(ValueError, match=r"measure the original module"):
        vit_tf.extract_features(scripted, IMAGES)


class EinsumAttention(nn.Module):
    """Attention written as `torch.einsum` and exponentials, or as `@` and a softmax."""

    def __init__(self, is_einsum):
        super().__init__()
        self.qkv, self.is_einsum = nn.Linear(8, 24), is_einsum

    def forward(self, x):
        q, k, v = (
            part.reshape(len(x), -1, 2, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        if self.is_einsum:
            weights = softmax_by_hand(torch.einsum("b h i d, b h j d -> b h i j", q, k))
            heads = torch.einsum("b h i j, b h j d -> b h i d", weights, v)
        else:
            weights = (q @ k.transpose(-1, -2)).softmax(-1)
            heads = weights @ v
        return heads.transpose(1, 2).flatten(2)


class EinsumViT(nn.Module):
    def __init__(self, is_einsum):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(EinsumAttention(is_einsum) for _ in range(2))

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


def test_attention_by_einsum_is_that_of_matrix_products():
    torch.manual_seed(0)
    plain, einsum = EinsumViT(False).eval(), EinsumViT(True).eval()
    einsum.load_state_dict(plain.state_dict())
    expected = analysis.features_of(plain, "attention")(IMAGES)
    found = analysis.features_of(einsum, "attention")(IMAGES)
    assert list(found) == list(expected) and len(found) == 2
    for name, weights in expected.items():
        np.testing.assert_allclose(found[name], weights, atol=1e-6)


def test_the_pattern_of_all_layers_includes_those_measured_by_default():
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)]
    module = nn.Sequential(*layers).eval()
    default = list(analysis.cka(module, IMAGES).layer_x.values)
    assert default[:3] == ["0", "1", "2"]
    assert set(default) <= set(analysis.layers(module).index)
    taps = vit_tf.submodel(module, "*")(IMAGES)
    for path in ("0", "1", "2", "3"):
        expected = np.moveaxis(by_hand(module, path, IMAGES), 1, -1)
        np.testing.assert_allclose(taps[path], expected, atol=1e-6)
