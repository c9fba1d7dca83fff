"""Traces are kept with a module until something changes that its runs depend on."""

import copy
import gc
import pickle
import types
import weakref

import numpy as np
import pytest

import vit_tf

torch = pytest.importorskip("torch")
nn = torch.nn
WIDTH, DEPTH = 6, 3
IS_DOUBLED = False  # a global that forwards read
CALLS: list[int] = []  # of blocks


class Block(nn.Module):
    is_scaled = False

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.extra = nn.Linear(WIDTH, WIDTH)
        self.config = types.SimpleNamespace(num_sums=1)

    def stream(self, x):
        """The residual stream to which the branch is added, after some sums."""
        for _ in range(self.config.num_sums - 1):
            x = x + self.extra(x).tanh()
        if IS_DOUBLED:
            x = x + x.square()
        return x + x * 2 if self.is_scaled else x

    def branch(self, x):
        return self.mlp(self.norm(x)).tanh()

    def forward(self, x):
        CALLS.append(1)
        x = self.stream(x)
        return x + self.branch(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 8, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.head, self.depth = nn.Linear(WIDTH, 4), DEPTH

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks[: self.depth]:
            x = block(x)
        return self.head(x.mean(1))


@pytest.fixture
def images(rng):
    return rng.uniform(-1, 1, (4, 24, 24, 3)).astype(np.float32)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def measure(net, images):
    return vit_tf.torch_features(net, "blocks.?", "*/branch", "*/skip", "logits")(images)


def by_hand(net, images):
    """The last branch and the output of each block, and the scores."""
    expected = []
    pixels = torch.from_numpy(np.moveaxis(images, -1, 1).copy())
    with torch.no_grad():
        x = net.patch(pixels).flatten(2).transpose(1, 2)
        for block in net.blocks[: net.depth]:
            stream = block.stream(x)
            branch = block.branch(stream)
            x = block(x)
            expected.append({"skip": stream, "branch": branch, "output": x})
        scores = net(pixels)
    return expected, scores


def check(net, images):
    found, (expected, scores) = measure(net, images), by_hand(net, images)
    for number, block in enumerate(expected):
        names = [name for name in found if name.startswith(f"blocks.{number}")]
        for end in ("skip", "branch"):
            last = [name for name in names if name.endswith(f"/{end}")][-1]
            np.testing.assert_allclose(found[last], block[end], atol=1e-6)
        np.testing.assert_allclose(found[f"blocks.{number}"], block["output"], atol=1e-6)
    assert f"blocks.{len(expected)}" not in found
    np.testing.assert_allclose(found["logits"], scores, atol=1e-6)


def replace_block(net, monkeypatch):
    net.blocks[1] = nn.Sequential(net.blocks[1])[0]  # the same block is no change
    other = Block()
    other.config.num_sums = 3
    net.blocks[1] = other


def add_hook(net, monkeypatch):
    net.blocks[0].norm.register_forward_hook(lambda _, inputs, output: output * 2 + 1)


def add_hook_before(net, monkeypatch):
    net.blocks[2].mlp.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))


def change_weights(net, monkeypatch):
    with torch.no_grad():
        net.blocks[0].mlp.weight.mul_(3.0)
    net.head.bias.data += 1


def load_state(net, monkeypatch):
    torch.manual_seed(1)
    net.load_state_dict(Net().state_dict())


def load_state_of_another_shape(net, monkeypatch):
    net.head.weight.data = torch.randn(7, WIDTH)
    net.head.bias.data = torch.randn(7)


def train(net, monkeypatch):
    net.train()


def change_configuration(net, monkeypatch):
    net.blocks[0].config.num_sums = 2


def change_depth(net, monkeypatch):
    net.depth = 2


def change_class(net, monkeypatch):
    monkeypatch.setattr(Block, "is_scaled", True)


def change_method(net, monkeypatch):
    monkeypatch.setattr(Block, "stream", lambda self, x: x + self.extra(x).sin())


def change_method_of_one(net, monkeypatch):
    block = net.blocks[1]
    block.stream = lambda x: x + block.extra(x).sin()


def change_global(net, monkeypatch):
    monkeypatch.setitem(globals(), "IS_DOUBLED", True)


CHANGES = [
    *(replace_block, add_hook, add_hook_before, change_weights, load_state),
    *(load_state_of_another_shape, train, change_configuration, change_depth),
    *(change_class, change_method, change_method_of_one, change_global),
]


@pytest.mark.filterwarnings("ignore:Submodules of Net that do not run:UserWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_module_is_measured_as_it_is(net, images, monkeypatch, change):
    check(net, images)
    change(net, monkeypatch)
    modes = [module.training for module in net.modules()]
    check(net, images)
    assert [module.training for module in net.modules()] == modes
    # A change that is undone, and another size of images.
    monkeypatch.undo()
    check(net, images)
    check(net, images[:, :16])


def test_a_module_that_is_not_changed_is_traced_once(net, images):
    counts = []
    for _ in range(3):
        CALLS.clear()
        measure(net, images)
        counts.append(len(CALLS))
    assert counts == [3 * DEPTH, DEPTH, DEPTH]  # two runs for the trace, and one for the images
    net.train()
    CALLS.clear()
    measure(net, images)
    assert len(CALLS) == DEPTH  # inference is the same in each mode


def test_a_trace_ends_with_its_module_and_is_no_part_of_it(images):
    net = Net().eval()
    attributes = {name: set(vars(module)) for name, module in net.named_modules()}
    measure(net, images)
    assert {name: set(vars(module)) for name, module in net.named_modules()} == attributes
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        other.blocks[0].config.num_sums = 2
        check(other, images)
    net.blocks[0].whole = [net]  # an attribute that leads back to the module
    check(net, images)
    end = weakref.ref(net)
    del net, other
    gc.collect()
    assert end() is None
