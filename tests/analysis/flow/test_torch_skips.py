"""Skips of PyTorch modules: which submodules have one, and the ratio to its branch."""

import contextlib
import importlib

import numpy as np
import pytest

from vit_tf import analysis

torch = pytest.importorskip("torch", reason="torch is not installed")
_calls = importlib.import_module("vit_tf.torch_models.module")._calls


class PlainUnit(torch.nn.Module):
    def __init__(self, width, out, stride=1):
        super().__init__()
        self.convolution = torch.nn.Conv2d(width, out, 3, stride, padding=1)
        self.normalization = torch.nn.BatchNorm2d(out)

    def forward(self, x):
        return self.normalization(self.convolution(x))


class Block(torch.nn.Module):
    """As a layer of a ResNet of transformers: a chain of convolutions and a skip around it."""

    def __init__(self, width, out):
        super().__init__()
        stride = 1 + (width != out)
        shortcut = torch.nn.Conv2d(width, out, 1, stride)
        self.shortcut = shortcut if stride > 1 else torch.nn.Identity()
        self.layer = torch.nn.Sequential(PlainUnit(width, out, stride), PlainUnit(out, out))

    def forward(self, x):
        residual = x
        x = self.layer(x)
        residual = self.shortcut(residual)
        x += residual
        return torch.relu(x)


def test_blocks_of_a_module_are_what_has_a_skip_and_not_the_chains_inside(rng):
    torch.manual_seed(0)
    stages = [torch.nn.Sequential(Block(3, 4), Block(4, 4)), torch.nn.Sequential(Block(4, 8))]
    pool = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5)]
    module = torch.nn.Sequential(*stages, *pool).eval()
    images = rng.normal(size=(4, 8, 8, 3)).astype("float32")
    result = analysis.skip_ratio(module, images)
    blocks = [module[0][0], module[0][1], module[1][0]]
    assert result.sizes["layer"] == len(blocks)
    x = torch.from_numpy(images).permute(0, 3, 1, 2)
    with torch.no_grad():
        for index, block in enumerate(blocks):
            pair = [block.shortcut(x), block.layer(x)]
            skip, branch = (np.float64(value).reshape(*value.shape[:2], -1) for value in pair)
            norms = np.linalg.norm(skip, axis=1), np.linalg.norm(branch, axis=1)
            ratio = np.where(norms[0] > 0, norms[0] / norms[1], np.nan)
            expected = np.nanmean(ratio, axis=0)
            actual = result.norm_ratio[index, : len(expected)]
            np.testing.assert_allclose(actual, expected, rtol=1e-4)
            x = block(x)


class Towers(torch.nn.Module):
    """Two equal paths from one input, which is no skip."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return torch.relu(self.first(x) + self.second(x))


def test_equal_paths_are_no_skips(rng):
    torch.manual_seed(0)
    towers = [Towers(), Towers(), Towers()]
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5)]
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), *towers, *head).eval()
    images = rng.normal(size=(4, 8, 8, 3)).astype("float32")
    calls, _ = _calls(module, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert not any(call.has_skip for call in calls)
    calls, _ = _calls(Block(3, 4), torch.from_numpy(images).permute(0, 3, 1, 2))
    assert [call.path for call in calls if call.has_skip] == [""]


class Tried(torch.nn.Module):
    """A block that goes on after a submodule has failed."""

    def __init__(self):
        super().__init__()
        self.broken, self.layer = torch.nn.Linear(7, 7), torch.nn.Conv2d(3, 3, 1)

    def forward(self, x):
        with contextlib.suppress(RuntimeError):
            self.broken(x)
        return x + self.layer(x)


def test_a_failed_submodule_does_not_take_the_skips_of_its_caller(rng):
    module = torch.nn.Sequential(Tried()).eval()
    calls, _ = _calls(module, torch.zeros((2, 3, 4, 4)))
    assert [call.path for call in calls if call.has_skip] == ["0"]
