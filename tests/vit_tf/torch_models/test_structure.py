"""Blocks that a PyTorch module's own code makes of sums and concatenations, by their values."""

import numpy as np
import pytest
from without_torchvision import import_or_skip

import vit_tf
from vit_tf import analysis

torch = pytest.importorskip("torch")
nn = torch.nn
WIDTH, HEADS, DEPTH, SIDE, PATCH = 12, 3, 3, 32, 8


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(-1, 1, (6, SIDE, SIDE, 3)).astype(np.float32)


def as_torch(images):
    return torch.from_numpy(np.moveaxis(images, -1, 1).copy())


def randomized(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return module.eval()


def layers_read(module, images):
    """The values of the representations, by name."""
    return {name: np.asarray(x) for name, x in vit_tf.submodel(module)(images).items()}


def outputs_by_hand(module, paths, images):
    """What submodules return, with the channels last."""
    kept = {}
    hooks = [
        module.get_submodule(path).register_forward_hook(
            lambda _, inputs, output, path=path: kept.update({path: output.detach().clone()})
        )
        for path in paths
    ]
    with torch.no_grad():
        module(as_torch(images))
    for hook in hooks:
        hook.remove()
    return {
        path: x.movedim(1, -1).numpy() if x.dim() == 4 else x.numpy() for path, x in kept.items()
    }


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.attend, self.out = nn.Softmax(-1), nn.Linear(WIDTH, WIDTH)

    def weights(self, x):
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        return self.attend(q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5), v

    def forward(self, x):
        weights, v = self.weights(x)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def mlp():
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 20), nn.GELU(), nn.Dropout(0.1), nn.Linear(20, WIDTH)
    )


class Transformer(nn.Module):
    """Attention and MLPs as pairs, whose sums are in the code of their parent."""

    def __init__(self, depth):
        super().__init__()
        pairs = [nn.ModuleList([Attention(), mlp()]) for _ in range(depth)]
        self.layers, self.norm = nn.ModuleList(pairs), nn.LayerNorm(WIDTH)

    def forward(self, x):
        for attention, mlp in self.layers:
            x = attention(x) + x
            x = mlp(x) + x
        return self.norm(x)


class PairedViT(nn.Module):
    def __init__(self, is_flat=False):
        super().__init__()
        self.patches, self.cls = (
            nn.Conv2d(3, WIDTH, PATCH, PATCH),
            nn.Parameter(torch.ones(1, 1, 1)),
        )
        self.positions = nn.Parameter(torch.zeros(1, 17, WIDTH))
        transformer = Transformer(DEPTH)
        if is_flat:  # all sums are in the code of the whole model
            self.layers, self.norm = transformer.layers, transformer.norm
        else:
            self.transformer = transformer
        self.head = nn.Linear(WIDTH, 5)

    def embed(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls.expand(x.shape[0], 1, WIDTH), x], 1) + self.positions

    def forward(self, x):
        holder = self.transformer if hasattr(self, "transformer") else self
        return self.head(Transformer.forward(holder, self.embed(x))[:, 0])


class CallingViT(PairedViT):
    def forward(self, x):
        return self.head(self.transformer(self.embed(x))[:, 0])


def by_hand(model, images):
    """The embedding, the sums of each block, their attention weights and the final norm."""
    holder = model.transformer if hasattr(model, "transformer") else model
    with torch.no_grad():
        x = model.embed(as_torch(images))
        values = {"embedding": x}
        for i, (attention, mlp) in enumerate(holder.layers):
            values[f"block{i:02d}/attention/weights"] = attention.weights(x)[0]
            values[f"block{i:02d}/attention/skip"] = x
            values[f"block{i:02d}/attention/branch"] = attention(x)
            x = attention(x) + x
            values[f"block{i:02d}/attention/sum"] = x
            values[f"block{i:02d}/mlp/branch"] = mlp(x)
            x = mlp(x) + x
            values[f"block{i:02d}/mlp/sum"] = x
        values["norm"] = holder.norm(x)
    return {name: value.numpy() for name, value in values.items()}


def test_sums_in_the_code_of_a_parent_are_blocks_of_the_grammar(images):
    model = randomized(CallingViT())
    expected = by_hand(model, images)
    ends = [f"block{i:02d}/mlp/sum" for i in range(DEPTH)]
    assert list(layers_read(model, images)) == ["embedding", *ends, "norm"]
    for name, value in vit_tf.submodel(model, "block*", "embedding", "norm")(images).items():
        if name in expected:
            np.testing.assert_allclose(value, expected[name], atol=1e-6)


def test_measurements_of_blocks_in_the_code_of_a_parent(images):
    model = randomized(CallingViT())
    expected = by_hand(model, images)
    weights = [x for name, x in expected.items() if name.endswith("weights")]
    place = np.stack(np.indices((4, 4)).reshape(2, -1), -1) * float(PATCH)
    distances = np.linalg.norm(place[:, None] - place[None], axis=-1)
    of_patches = [x[..., 1:, 1:].astype(float) for x in weights]
    means = [(w / w.sum(-1, keepdims=True) * distances).sum(-1).mean((0, 2)) for w in of_patches]
    np.testing.assert_allclose(analysis.attention_distance(model, images), means, rtol=1e-5)

    ratios = [
        np.linalg.norm(expected[f"block{i:02d}/attention/skip"], axis=-1)
        / np.linalg.norm(expected[f"block{i:02d}/attention/branch"], axis=-1)
        for i in range(DEPTH)
    ]
    found = analysis.skip_ratio(model, images).norm_ratio
    assert found.sizes["layer"] == 2 * DEPTH
    np.testing.assert_allclose(found[::2], [r.mean(0) for r in ratios], rtol=1e-5)

    # A block without its branches is the identity.
    features = analysis.features_of(model, layers=["*/branch", "logits"])
    edits = {f"block01/{site}/branch": lambda x: 0 * x for site in ("attention", "mlp")}
    edited = features.edited(images, edits)["logits"]
    model.transformer.layers = nn.ModuleList(list(model.transformer.layers)[::2])
    with torch.no_grad():
        np.testing.assert_allclose(edited, model(as_torch(images)).numpy(), atol=1e-6)


def test_sums_in_the_code_of_the_whole_model(images):
    model = randomized(PairedViT(is_flat=True))
    expected, read = by_hand(model, images), layers_read(model, images)
    ends = [f"block{i:02d}/mlp/sum" for i in range(DEPTH)]
    assert list(read) == ["embedding", *ends, "norm"]
    for name in read:
        np.testing.assert_allclose(read[name], expected[name], atol=1e-6)
    # Without the embedding, the class token alone goes on.
    edit = {"embedding": vit_tf.edits.zero}
    edited = vit_tf.intervene(model, edit, "logits")(images)["logits"]
    zeros = torch.zeros(len(images), 17, WIDTH)
    with torch.no_grad():
        logits = model.head(Transformer.forward(model, zeros)[:, 0])
    np.testing.assert_allclose(edited, logits, atol=1e-6)


def test_the_graph_of_a_module_is_read_as_the_module_itself(images):
    """Submodules that a graph of torch.fx inlines are not called; values by the module's hooks."""
    model = randomized(CallingViT())
    graph = torch.fx.symbolic_trace(model)
    expected, read = by_hand(model, images), layers_read(graph, images)
    assert list(read) == list(layers_read(model, images))
    values = vit_tf.submodel(graph, "embedding", "block*", "norm")(images)
    assert {*values} >= {*expected}
    for name in expected:
        np.testing.assert_allclose(values[name], expected[name], atol=1e-6)


class Dense(nn.Module):
    """A dense block: each layer is given what all before it returned."""

    def __init__(self, channels):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(channels + 4 * i, 4, 3, padding=1) for i in (0, 1)])

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)).relu())
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second = nn.Conv2d(3, 8, 3), Dense(8), Dense(10)
        self.transition, self.head = nn.Conv2d(16, 10, 2, 2), nn.Linear(18, 5)

    def forward(self, x):
        x = self.second(self.transition(self.first(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Inception(nn.Module):
    """Blocks of different classes, one of which is in the model's own code."""

    def __init__(self):
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 8, 3), Dense(8)
        self.one, self.three = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 6, 3, padding=1)
        self.head = nn.Linear(10, 5)

    def forward(self, x):
        x = self.block(self.stem(x))
        return self.head(torch.cat([self.one(x), self.three(x)], 1).mean((2, 3)))


def test_concatenations_are_blocks(images):
    model = randomized(DenseNet())
    read, expected = layers_read(model, images), outputs_by_hand(model, ["first", "second"], images)
    assert list(read) == ["embedding", "first", "second"]
    for name, value in expected.items():
        np.testing.assert_allclose(read[name], value, atol=1e-6)

    model = randomized(Inception())
    read = layers_read(model, images)
    assert list(read) == ["embedding", "block", "00/concatenation"]
    expected = outputs_by_hand(model, ["one", "three", "block"], images)
    joined = np.concatenate([expected["one"], expected["three"]], -1)
    np.testing.assert_allclose(read["00/concatenation"], joined, atol=1e-6)
    np.testing.assert_allclose(read["block"], expected["block"], atol=1e-6)


class Residual(nn.Module):
    def __init__(self, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 8, 1, stride)

    def forward(self, x):
        return (self.shortcut(x) + self.conv2(self.conv1(x).relu())).relu()


class Folded(nn.Module):
    """Attention blocks between a shortcut and its concatenation, as in MobileViT."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer
        self.blocks = nn.Sequential(*[layer(8, 2, 8, batch_first=True) for _ in range(2)])
        self.fusion = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x):
        tokens = self.blocks(x.flatten(2).transpose(1, 2))
        return self.fusion(torch.cat([x, tokens.transpose(1, 2).reshape(x.shape)], 1))


@pytest.mark.slow
def test_stages_of_one_block_and_blocks_around_others(images):
    stages = [nn.Sequential(Residual(1), Residual(1)), nn.Sequential(Residual(2)), Folded()]
    stages += [nn.BatchNorm2d(8), Folded()]
    layers = [nn.Conv2d(3, 8, 3, 2), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = randomized(nn.Sequential(*layers, nn.Linear(8, 5)))
    paths = ["1.0", "1.1", "2.0", "3", "5"]
    read, expected = layers_read(model, images), outputs_by_hand(model, paths, images)
    assert list(read) == ["embedding", *paths]
    for name, value in expected.items():
        np.testing.assert_allclose(read[name], value, atol=1e-6)


def test_layers_that_change_nothing_and_scores_are_no_representations(images):
    features = [nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout2d()]
    classifier = [nn.Flatten(), nn.Dropout(), nn.Linear(900, 7), nn.ReLU(), nn.Dropout()]
    layers = [*features, *classifier, nn.Linear(7, 5), nn.Softmax(-1)]
    model = randomized(nn.Sequential(*layers))
    read = layers_read(model, images)
    assert list(read) == ["0", "1", "2", "6", "7"]
    expected = outputs_by_hand(model, list(read), images)
    for name, value in expected.items():
        np.testing.assert_allclose(read[name], value, atol=1e-6)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = self.double(3), self.double(16)
        self.middle, self.head = self.double(8), nn.Conv2d(8, 2, 1)

    @staticmethod
    def double(channels):
        return Double(channels)

    def forward(self, x):
        x = self.down(x)
        y = self.middle(nn.functional.max_pool2d(x, 2))
        x = torch.cat([x, nn.functional.interpolate(y, scale_factor=2)], 1)
        return self.head(self.up(x))


class Double(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.one, self.two = nn.Conv2d(channels, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return self.two(self.one(x).relu())


def test_blocks_that_are_not_found_are_warned_of(images):
    with pytest.warns(UserWarning, match="has 3 blocks"):
        analysis.cka(randomized(UNet()), images)


class Head(nn.Module):
    """A model whose last layers are a function of tokens."""

    def __init__(self, head):
        super().__init__()
        self.vit, self.norm, self.dense = CallingViT(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
        self.end = head

    def forward(self, x):
        return self.end(self, self.norm(self.vit.transformer(self.vit.embed(x))))


HEADLESS = {
    "the CLS token of a norm": lambda m, x: x[:, 0],
    "a mean of tokens": lambda m, x: x.mean(1),
    "tokens": lambda m, x: x,
    "an activation": lambda m, x: torch.tanh(m.dense(x[:, 0])),
    "attention pooling": lambda m, x: (x + m.vit.transformer.layers[0][1](x)).mean(1),
}
CLASSIFIERS = {
    "a vector": lambda m, x: m.dense(x[:, 0]),
    "a mean of scores": lambda m, x: m.dense(x).mean(1),
    "scaled probabilities": lambda m, x: (m.dense(x[:, 0]) / 3 - 1).softmax(-1),
    "logits among others": lambda m, x: {"logits": m.dense(x).amax(1), "tokens": x},
}


@pytest.mark.parametrize("name", HEADLESS)
def test_modules_without_class_scores_are_refused_where_these_are_read(images, name):
    model = randomized(Head(HEADLESS[name]))
    assert analysis.features_of(model).facts.scores is None
    for measure in (analysis.skip_ablation, analysis.mistakes):
        with pytest.raises(ValueError, match=r"'Head' has no class scores"):
            measure(model, (images, np.arange(6) % 5))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_class_scores_are_those_of_a_kernel(images, name):
    model = randomized(Head(CLASSIFIERS[name]))
    features = analysis.features_of(model, "scores")
    with torch.no_grad():
        output = model(as_torch(images))
    output = output["logits"] if isinstance(output, dict) else output
    assert features.facts.num_classes == 5
    scores = np.asarray(features(images)["logits"], float)
    if name == "scaled probabilities":
        scores = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(scores, output, atol=1e-6)


def encoder_of_open_clip(kind):
    """A tiny image encoder of open_clip with a projection, and the pixels of its images."""
    open_clip, _ = import_or_skip("open_clip"), import_or_skip("timm")
    if kind == "ViT":
        vision = {"image_size": SIDE, "layers": 2, "width": 24, "patch_size": 8, "head_width": 8}
        text = {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}
        return open_clip.CLIP(16, vision, text).visual
    if kind == "ResNet":
        return open_clip.modified_resnet.ModifiedResNet([1, 1, 1, 1], 16, 4, SIDE, 8)
    projected = {"embed_dim": 16, "image_size": SIDE, "proj": kind.split()[1], "pool": "avg"}
    return open_clip.timm_model.TimmModel("test_resnet", **projected)


@pytest.mark.parametrize("kind", ["ViT", "ResNet", "timm linear", "timm mlp"])
def test_embeddings_of_clip_models_are_no_class_scores(images, kind):
    """What open_clip projects is refused; a kernel of one's own behind it computes scores."""
    encoder = encoder_of_open_clip(kind).eval()
    assert analysis.features_of(encoder).facts.scores is None
    with pytest.raises(ValueError, match=r"no class scores: .* no classifier"):
        analysis.mistakes(encoder, (images, np.arange(6) % 5))
    classifier = nn.Sequential(encoder, nn.Linear(16, 5)).eval()
    features = analysis.features_of(classifier, "scores")
    with torch.no_grad():
        expected = classifier(as_torch(images)).numpy()
    np.testing.assert_allclose(features(images)["logits"], expected, atol=1e-5)


def test_the_projection_of_a_clip_model_of_transformers_is_an_embedding(images):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 40, "image_size": SIDE, "patch_size": 8, "projection_dim": 16}
    config = transformers.CLIPVisionConfig(**sizes)
    projected = transformers.CLIPVisionModelWithProjection(config).eval()
    assert analysis.features_of(projected).facts.scores is None
    whole = transformers.CLIPConfig(vision_config=sizes, num_labels=5)
    classifier = transformers.CLIPForImageClassification(whole).eval()
    assert analysis.features_of(classifier).facts.num_classes == 5


class TwoHeads(nn.Module):
    """Two convolutions, and class scores of either, of which one or both are returned."""

    def __init__(self, output):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.head, self.other, self.end = nn.Linear(8, 4), nn.Linear(8, 2), nn.Softmax(-1)
        self.output = output

    def forward(self, x):
        first = torch.relu(self.c1(x))
        second = torch.relu(self.c2(first))
        scores = self.end(self.head(second.mean((2, 3))))
        return self.output(scores, self.other(first.mean((2, 3))), second)


RETURNED = {
    "one": lambda scores, other, maps: scores,
    "a tuple": lambda scores, other, maps: (scores, other),
    "a dict": lambda scores, other, maps: {"logits": scores, "other": other},
    "maps too": lambda scores, other, maps: [scores, maps],
}


@pytest.mark.parametrize("name", RETURNED)
def test_class_scores_of_no_head_are_a_representation(images, name):
    module = TwoHeads(RETURNED[name]).eval()
    assert set(layers_read(module, images)) == {"c1", "c2"}
