import re

import numpy as np
import pytest
from archive_files import memory_below

from vit_tf.checkpoints.archives import CheckpointFile, TensorInfo, open_archive
from vit_tf.checkpoints.weight_maps import Transform, WeightMap, fill

DIM = 4


class Weight:
    """A variable of NumPy."""

    def __init__(self, *shape):
        self.shape, self.value = shape, None

    def assign(self, value):
        assert np.shape(value) == self.shape
        self.value = np.array(value)


@pytest.fixture
def tensors(rng):
    """A block in timm's layout, and what a model does not need."""
    shapes = {"norm.weight": (DIM,), "qkv.weight": (3 * DIM, DIM), "head.weight": (5, DIM)}
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return tensors | {"relative_position_index": np.arange(9), "steps": np.arange(1)}


@pytest.fixture
def weights():
    square = {name: Weight(DIM, DIM) for name in ("query", "key", "value")}
    return {"norm": Weight(DIM), **square, "head/kernel": Weight(DIM, 5)}


def part(index):
    return lambda fused: fused.reshape(3, DIM, DIM)[index].T


ROWS = {
    "norm": Transform({"norm.weight": (DIM,)}),
    "query": Transform({"qkv.weight": (3 * DIM, DIM)}, part(0)),
    "head/kernel": Transform({"head.weight": (5, DIM)}, np.transpose),
    "key": Transform({"qkv.weight": (3 * DIM, DIM)}, part(1)),
    "value": Transform({"qkv.weight": (3 * DIM, DIM)}, part(2)),
}
UNUSED = ("relative_*", "steps")


class Recorded(CheckpointFile):
    """An archive in memory that notes what is read of it."""

    def __init__(self, tensors):
        self.path, self.reads, self._arrays = "some.npz", [], tensors
        self.tensors = {n: TensorInfo(a.shape, a.dtype.name) for n, a in tensors.items()}

    def read(self, name):
        self.reads.append(name)
        return self._arrays[name]


def refused(*parts):
    pattern = "Expected the tensors of 'some.npz' to match.*Received: " + ".*".join(
        map(re.escape, parts)
    )
    return pytest.raises(ValueError, match=pattern)


def assert_untouched(archive, weights):
    assert not archive.reads
    assert all(weight.value is None for weight in weights.values())


def test_every_weight_is_filled_and_each_tensor_read_once(tensors, weights, tmp_path):
    np.savez(tmp_path / "a.npz", **tensors)
    with open_archive(tmp_path / "a.npz") as archive:
        fill(weights, archive, WeightMap(weights=ROWS, unused_tensors=UNUSED))
    query, key, value = np.split(tensors["qkv.weight"], 3)
    expected = {"query": query.T, "key": key.T, "value": value.T, "norm": tensors["norm.weight"]}
    expected["head/kernel"] = tensors["head.weight"].T
    for name, array in expected.items():
        np.testing.assert_array_equal(weights[name].value, array)
    archive = Recorded(tensors)
    fill(weights, archive, WeightMap(weights=ROWS, unused_tensors=UNUSED))
    assert sorted(archive.reads) == ["head.weight", "norm.weight", "qkv.weight"]


def test_weights_of_several_tensors_or_none(rng):
    tensors = {"q_bias": np.ones(2, np.float32), "v_bias": np.full(2, 2, np.float64)}
    weights = {"qkv": Weight(6), "zeros": Weight(3)}
    sources = {
        "qkv": Transform(
            {"v_bias": (2,), "q_bias": (2,)}, lambda v, q: np.concatenate([q, np.zeros(2), v])
        ),
        "zeros": Transform({}, lambda: np.zeros(3)),
    }
    fill(weights, Recorded(tensors), WeightMap(weights=sources))
    np.testing.assert_array_equal(weights["qkv"].value, [1, 1, 0, 0, 2, 2])
    assert weights["qkv"].value.dtype == np.float32
    np.testing.assert_array_equal(weights["zeros"].value, np.zeros(3))


def test_a_new_head_is_left_as_it_is(tensors, weights):
    archive = Recorded(tensors)
    with refused("unexpected tensors (1): head.weight"):
        fill(
            weights,
            archive,
            WeightMap(weights=ROWS, unused_tensors=UNUSED, new_weights=("head/*",)),
        )
    assert_untouched(archive, weights)
    fill(
        weights,
        archive,
        WeightMap(weights=ROWS, unused_tensors=(*UNUSED, "head.*"), new_weights=("head/*",)),
    )
    assert weights["head/kernel"].value is None
    assert weights["value"].value is not None


def test_a_used_tensor_may_match_an_unused_pattern(tensors, weights):
    fill(weights, Recorded(tensors), WeightMap(weights=ROWS, unused_tensors=("*",)))
    assert all(weight.value is not None for weight in weights.values())


def test_everything_that_does_not_fit_is_in_one_error(tensors, weights):
    weights["extra"] = Weight(3)
    tensors["head.weight"] = tensors["head.weight"][:3]
    tensors["stray"] = np.zeros(2)
    del tensors["norm.weight"]
    archive = Recorded(tensors)
    with refused(
        "missing tensors (1): norm.weight; ",
        "unexpected tensors (2): steps, stray; ",
        "misshapen (1): 'head.weight' of (3, 4), expected (5, 4); ",
        "weights without a source (1): extra",
    ):
        fill(weights, archive, WeightMap(weights=ROWS, unused_tensors=("relative_*",)))
    assert_untouched(archive, weights)


def test_weights_are_floats(tensors, weights):
    tensors["norm.weight"] = tensors["norm.weight"].view(np.int32)
    archive = Recorded(tensors)
    with refused("misshapen (1): 'norm.weight' of int32, expected floats"):
        fill(weights, archive, WeightMap(weights=ROWS, unused_tensors=UNUSED))
    assert_untouched(archive, weights)


def test_long_lists_end_in_a_count(tensors, weights):
    stray = {f"stray{i:02d}": np.zeros(2) for i in range(20)}
    with refused("unexpected tensors (20): stray00, stray01,", "stray09 and 10 more"):
        fill(weights, Recorded(tensors | stray), WeightMap(weights=ROWS, unused_tensors=UNUSED))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_weights_are_finite(value, tensors, weights):
    tensors["head.weight"] = tensors["head.weight"].astype(np.float64)
    tensors["head.weight"][1, 1] = value
    with pytest.raises(ValueError, match=r"NaN or infinite weights in .*head\.weight"):
        fill(weights, Recorded(tensors), WeightMap(weights=ROWS, unused_tensors=UNUSED))


def test_checking_and_filling_take_little_memory(tmp_path):
    shape, bytes_each = (512, 512), 512 * 512 * 4
    np.savez(tmp_path / "a.npz", **{f"t{i}": np.ones(shape, np.float32) for i in range(12)})

    class Sink(Weight):
        def assign(self, value):
            self.value = float(np.max(value))

    weights = {f"w{i}": Sink(512, 512) for i in range(12)}
    sources = {f"w{i}": Transform({f"t{i}": shape}, np.transpose) for i in range(12)}
    with memory_below(2.5 * bytes_each), open_archive(tmp_path / "a.npz") as archive:
        fill(weights, archive, WeightMap(weights=sources))
    assert all(weight.value == 1 for weight in weights.values())
