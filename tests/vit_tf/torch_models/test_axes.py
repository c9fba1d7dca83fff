"""What is attention between tokens, and where channels are, whatever a module's code looks like."""

import itertools

import numpy as np
import pytest

import vit_tf
from vit_tf import analysis

torch = pytest.importorskip("torch")
axes = pytest.importorskip("vit_tf.torch_models.axes")
nn = torch.nn


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 5, 24), (2, 5, 3, 2, 4)),
        ((2, 3, 4, 4), (6, 16)),
        ((2, 3, 5, 4), (6, 5, 4)),
        ((2, 8, 3), (2, 2, 4, 3)),
        ((4, 6), (3, 8)),
        ((2, 1, 6), (2, 6, 1)),
    ],
)
def test_axes_of_a_reshape_are_those_that_vary_with_them(before, after):
    """Steps along a new axis change positions along the old axes of its block, and no others."""
    positions = np.stack(np.unravel_index(np.arange(np.prod(before)), before)).reshape(-1, *after)
    blocks = axes.reshaped_axes(before, after)
    found = {axis: {*old} for old, new in blocks for axis in new}
    for axis, size in enumerate(after):
        if size > 1:
            steps = np.diff(positions, axis=axis + 1)
            varying = {i for i, step in enumerate(steps) if step.any()}
            assert varying <= found[axis], (axis, varying)
    # Blocks cannot be split: fewer axes of one would hold another number of values.
    for old, new in blocks:
        sizes = [[shape[i] for i in part] for shape, part in ((before, old), (after, new))]
        ends = [{*itertools.accumulate(size, np.multiply)} for size in sizes]
        assert ends[0] & ends[1] == {np.prod(sizes[0])}


class Attention(nn.Module):
    """Two heads of 16 channels over 16 tokens, so that shapes show no difference."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.qkv, self.out = kind, nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        n, tokens, width = x.shape
        order = (2, 0, 3, 4, 1) if self.kind == "covariance" else (2, 0, 3, 1, 4)
        q, k, v = self.qkv(x).reshape(n, tokens, 3, 2, 16).permute(*order).unbind(0)
        if self.kind == "linear":  # softmax of queries over channels, of keys over tokens
            context = k.softmax(-2).transpose(-1, -2) @ v
            y = (q.softmax(-1) @ context).transpose(1, 2)
        elif self.kind == "covariance":
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
            y = ((q @ k.transpose(-1, -2)).softmax(-1) @ v).permute(0, 3, 1, 2)
        elif self.kind == "chunks":  # of queries
            parts = [q[:, :, :8], q[:, :, 8:]]
            parts = [(part @ k.transpose(-1, -2) / 4).softmax(-1) @ v for part in parts]
            y = torch.cat(parts, dim=2).transpose(1, 2)
        elif self.kind in ("heads first", "heads joined", "heads last"):
            parts = self.qkv(x).chunk(3, -1)
            if self.kind == "heads joined":  # as in the Set Transformer
                q, k, v = (torch.cat(part.split(16, 2), 0) for part in parts)
            else:
                order = (2, 0, 1, 3) if self.kind == "heads first" else (0, 2, 1, 3)
                split = (part.view(n, tokens, 2, 16).permute(*order) for part in parts)
                q, k, v = (part.reshape(2 * n, tokens, 16) for part in split)
            weights = (torch.bmm(q, k.transpose(1, 2)) / 4).softmax(-1)
            y, sizes = torch.bmm(weights, v), (n, 2) if self.kind == "heads last" else (2, n)
            by_head = weights.view(*sizes, tokens, tokens)
            y = y.view(*sizes, tokens, 16)
            self.weights = by_head if self.kind == "heads last" else by_head.transpose(0, 1)
            y = y.permute(0, 2, 1, 3) if self.kind == "heads last" else y.permute(1, 2, 0, 3)
        else:
            scores = q @ k.transpose(-1, -2) / 4
            scores = scores.masked_fill(torch.eye(tokens, dtype=torch.bool), -1e4)
            self.weights = scores.softmax(-1)
            y = (self.weights @ v).transpose(1, 2)
            if self.kind == "positions":  # relative ones, added to the values
                table = torch.arange(16.0).cos().expand(tokens, tokens, 16)
                y = y + torch.einsum("bhqk,qkd->bqhd", self.weights, table)
        return self.out(y.reshape(n, tokens, width))


class Experts(nn.Module):
    """A soft mixture of experts: a softmax over slots weights what the experts return."""

    def __init__(self):
        super().__init__()
        self.slots = nn.Parameter(torch.randn(32, 16))
        self.expert = nn.Linear(32, 32)

    def forward(self, x):
        logits = x @ self.slots
        return logits.softmax(-1) @ self.expert(logits.softmax(1).transpose(1, 2) @ x)


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(32), Attention(kind)
        self.norm2 = nn.LayerNorm(32)
        self.mlp = Experts() if kind == "experts" else nn.Linear(32, 32)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.blocks = nn.Sequential(Block(kind), Block(kind))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(tokens)).mean(1))


@pytest.fixture
def images():
    return np.random.default_rng(0).uniform(-1, 1, (6, 16, 16, 3)).astype("float32")


def net(kind):
    torch.manual_seed(0)
    return Net(kind).eval()


@pytest.mark.parametrize(("kind", "reason"), [("linear", ""), ("covariance", "between channels")])
def test_a_softmax_over_channels_is_no_attention_between_tokens(kind, reason, images):
    for measure in (analysis.attention_distance, analysis.attention_rollout):
        with pytest.raises(ValueError, match=rf"Attention weights.* not found in 'Net'.*{reason}"):
            measure(net(kind), images)
    assert analysis.cka(net(kind), images).layer_x.values.tolist()[-3:-1] == [
        "blocks.0",
        "blocks.1",
    ]


@pytest.mark.parametrize("kind", ["masked", "experts", "heads first", "heads joined", "heads last"])
def test_attention_is_that_of_queries_and_keys_alone(kind, images):
    """Masks keep what scores are; a mixture of experts is the MLP of its block.

    Heads may be folded into the axis of examples, in either order.
    """
    module = net(kind)
    with torch.no_grad():
        stream = module.patches(torch.tensor(images).permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
        weights, ratios = [], []
        for block in module.blocks:
            for branch, norm in ((block.attention, block.norm1), (block.mlp, block.norm2)):
                step = branch(norm(stream))
                ratios.append((stream.norm(dim=-1) / step.norm(dim=-1)).mean().item())
                stream = stream + step
            weights.append(block.attention.weights.mean(0).double().numpy())
    rows = np.indices((4, 4)).reshape(2, -1).T * 4
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    expected = [(each * apart).sum(-1).mean(-1) for each in weights]
    distance = analysis.attention_distance(module, images)
    np.testing.assert_allclose(distance, expected, rtol=1e-5)
    ratio = analysis.skip_ratio(module, images)
    assert [x.rpartition("/")[2] for x in ratio.layer.values] == ["attention", "mlp"] * 2
    np.testing.assert_allclose(ratio.part_ratio.sel(part="all"), ratios, rtol=1e-4)


def test_weights_that_are_used_twice_are_one_attention_without_outputs_of_heads(images):
    module = net("positions")
    distance = analysis.attention_distance(module, images)
    assert distance.sizes["layer"] == 2
    first = module.blocks[0].attention
    with torch.no_grad():
        module(torch.tensor(images).permute(0, 3, 1, 2))
    rows = np.indices((4, 4)).reshape(2, -1).T * 4
    apart = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
    expected = (first.weights.mean(0).double().numpy() * apart).sum(-1).mean(-1)
    np.testing.assert_allclose(distance[0], expected, rtol=1e-5)
    with pytest.raises(ValueError, match="Outputs of attention heads not found"):
        analysis.head_ablation(module, (images, np.arange(6) % 5))


def test_queries_in_chunks_have_no_outputs_of_whole_heads(images):
    with pytest.raises(ValueError, match="Outputs of attention heads not found"):
        analysis.head_ablation(net("chunks"), (images, np.arange(6) % 5))


def test_heads_that_are_folded_in_front_of_examples_are_ablated_one_by_one(images):
    module, labels = net("heads first"), np.arange(6) % 5
    x = torch.tensor(images).permute(0, 3, 1, 2)

    def loss(block=None, head=None):
        """The loss without a head, whose channels the output projection does not get."""

        def remove(_, args):
            return (args[0] * (torch.arange(32) // 16 != head),)

        hook = block is not None and block.attention.out.register_forward_pre_hook(remove)
        with torch.no_grad():
            value = nn.functional.cross_entropy(module(x), torch.tensor(labels)).item()
        if hook:
            hook.remove()
        return value

    expected = [[loss(block, head) - loss() for head in (0, 1)] for block in module.blocks]
    change = analysis.head_ablation(module, (images, labels)).loss_change
    np.testing.assert_allclose(change, expected, rtol=1e-3, atol=1e-6)


class Scaled(Block):
    """The residual sums in other words: with a factor, and as the sum of a list."""

    in_place = False

    def forward(self, x):
        if self.in_place:
            x = x.clone()
            x.add_(self.attention(self.norm1(x)), alpha=0.5)
        else:
            x = torch.add(x, self.attention(self.norm1(x)), alpha=0.5)
        return sum([x, self.mlp(self.norm2(x))])


def test_sums_with_a_factor_and_of_lists_are_skips(images):
    module = net("masked")
    module.blocks = nn.Sequential(Scaled("masked"), Scaled("masked"))
    module.blocks[1].in_place = True
    ratios = []
    with torch.no_grad():
        stream = module.patches(torch.tensor(images).permute(0, 3, 1, 2)).flatten(2).transpose(1, 2)
        for block in module.blocks:
            for factor, branch, norm in (
                (0.5, block.attention, block.norm1),
                (1, block.mlp, block.norm2),
            ):
                step = factor * branch(norm(stream))
                ratios.append((stream.norm(dim=-1) / step.norm(dim=-1)).mean().item())
                stream = stream + step
    ratio = analysis.skip_ratio(module, images)
    np.testing.assert_allclose(ratio.part_ratio.sel(part="all"), ratios, rtol=1e-4)
    values = vit_tf.extract_features(module, images)
    last = [value for name, value in values.items() if name.startswith("block")][-1]
    np.testing.assert_allclose(last, stream.numpy(), rtol=1e-4, atol=1e-5)
    assert analysis.attention_rollout(module, images).sizes["layer"] == 2


def test_a_configuration_that_declares_several_labels_has_sigmoids(images):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    options = {"image_size": 16, "patch_size": 8, "intermediate_size": 16, "num_labels": 3}
    kind = {"problem_type": "multi_label_classification", "initializer_range": 0.4}
    module = transformers.ViTForImageClassification(
        transformers.ViTConfig(**sizes, **options, **kind)
    ).eval()
    with torch.no_grad():
        logits = module(torch.tensor(images).permute(0, 3, 1, 2)).logits
    found = analysis.predict(module, images, top=3).probability
    np.testing.assert_allclose(found, logits.sigmoid().sort(1, descending=True)[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ((slice(None), 1500), {0: 0, 2: 1}),
        ((Ellipsis, 0), {0: 0, 1: 1}),
        ((None, slice(1, 3)), {0: 1, 1: 2, 2: 3}),
        ((0, Ellipsis, None), {1: 0, 2: 1}),
    ],
)
def test_axes_of_an_index_are_those_that_are_left(index, expected):
    """As NumPy has them: axes of different sizes are found by their size."""
    array = np.empty((4, 2000, 6))
    result = array[index]
    blocks = axes._indexed_axes(index, 3)
    found = {old: new for (old,), (new,) in blocks}
    assert found == expected
    for old, new in found.items():
        if not isinstance(index, tuple) or array[index].shape[new] == array.shape[old]:
            assert result.shape[new] == array.shape[old]


class Shuffled(nn.Module):
    """Operations that a trace must live through: many axes, large indices, keywords."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 1600)
        self.table = nn.Parameter(torch.randn(1, 16, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = torch.transpose(input=self.patches(x).flatten(2), dim0=1, dim1=2)
        x = x + self.table.type_as(x)
        n = len(x)
        parts = x.view(n, 2, 2, 2, 2, 2, 2, 2).permute(0, 2, 1, 4, 3, 6, 5, 7)
        x = self.norm(parts.permute(0, 2, 1, 4, 3, 6, 5, 7).reshape(n, 16, 8))
        scores = self.head(x.mean(1))
        return torch.clamp(input=scores, min=-100) + 0 * scores[:, 1500:1501]


def test_unusual_operations_are_traced_and_leave_nothing_on_the_parameters(images):
    torch.manual_seed(0)
    module = Shuffled().eval()
    with torch.no_grad():
        expected = module(torch.tensor(images).permute(0, 3, 1, 2)).numpy()
    found = vit_tf.extract_features(module, images, layers="logits")
    np.testing.assert_allclose(next(iter(found.values())), expected, rtol=1e-5, atol=1e-6)
    assert not any(vars(x) for x in module.parameters())
