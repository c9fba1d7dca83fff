"""What is attention between tokens, and where channels are, whatever a module's code looks like."""

import itertools

import numpy as np
import pytest

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
        else:
            scores = q @ k.transpose(-1, -2) / 4
            scores = scores.masked_fill(torch.eye(tokens, dtype=torch.bool), -1e4)
            self.weights = scores.softmax(-1)
            y = (self.weights @ v).transpose(1, 2)
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


@pytest.mark.parametrize("kind", ["masked", "experts"])
def test_attention_is_that_of_queries_and_keys_alone(kind, images):
    """Masks keep what scores are; a mixture of experts is the MLP of its block."""
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
