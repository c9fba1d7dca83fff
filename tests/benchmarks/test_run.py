"""The comparisons are of models that agree, and their ratios are what they say."""

import numpy as np
import pytest

from benchmarks import growth, harness, implementations, input as input_pipelines, run
from benchmarks.harness import Benchmark, Ratio
from vit_tf.scripts import common

TINY = {
    "image_shape": (16, 16, 3),
    "patch_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "mlp_dim": 16,
    "num_classes": 5,
}


def test_the_packages_have_the_same_vit(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    images = rng.normal(size=(3, 16, 16, 3)).astype("float32")
    ours = np.asarray(implementations.vit(**TINY)(images))
    with torch.no_grad():
        theirs = implementations.hugging_face(**TINY)(
            torch.tensor(images.transpose(0, 3, 1, 2))
        ).logits
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-6)
    assert ours.std() > 1e-3


def test_keras_hub_has_the_same_vit(rng):
    pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    images = rng.normal(size=(3, 16, 16, 3)).astype("float32")
    ours, theirs = (
        np.asarray(make(**TINY)(images))
        for make in (implementations.vit, implementations.keras_hub)
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_answers_that_differ_are_refused():
    race = Benchmark("", {}, (), tolerance=0.01)
    harness.check_results(race, {"a": np.array([1.0, 2.0]), "b": np.array([1.01, 2.0]), "c": None})
    with pytest.raises(ValueError, match="between a and b"):
        harness.check_results(race, {"a": np.array([1.0, 2.0]), "b": np.array([1.03, 2.0])})
    with pytest.raises(ValueError, match="one shape"):
        harness.check_results(race, {"a": np.ones(2), "b": np.ones(3)})
    with pytest.raises(ValueError, match="differ"):
        harness.check_results(race, {"a": np.array([1.0]), "b": np.array([np.nan])})


def make_runs(**seconds):
    return {name: [{"seconds": s, "peak": 2 * s} for s in of] for name, of in seconds.items()}


def test_ratios_are_of_runs_in_the_same_turn():
    timed = make_runs(vit_tf=[1, 4, 9], other=[2, 4, 6], third=[2, 4, 3])
    np.testing.assert_allclose(harness.ratio(timed, Ratio(("other",), 1)), [0.75, 1.0, 1.25])
    both = harness.ratio(timed, Ratio(("other", "third"), 1))
    np.testing.assert_allclose(both[1], 0.5)
    np.testing.assert_allclose(harness.ratio(timed, Ratio((), 1, "peak"))[1], 8)


@pytest.mark.slow
def test_growth_of_memory_is_what_is_kept():
    """Of 8 MB that are kept of each batch, and of none."""

    def batches(keep):
        for _ in range(12):
            new = np.ones(10**6)
            if keep:
                stored.append(new)
            yield new[:4], None

    for keep in (True, False):
        stored = []
        epochs = Epochs(lambda keep=keep: batches(keep))
        outputs = input_pipelines.growth(epochs, images=40 * 4, first=20 * 4, readings=3)
        # From the batches 20, 21 and 22 to the last 3 of the 48 of four epochs.
        assert abs(outputs - keep * 26 * 8) < 20


class Epochs:
    """What can be iterated again and again."""

    def __init__(self, make):
        self._make = make

    def __iter__(self):
        return self._make()


def test_rows_of_the_table():
    race = Benchmark("work", {}, ())
    timed = make_runs(vit_tf=[1, 1], other=[2, 2])
    row = run.describe(race, timed, {}, Ratio(("other",), 0.4))
    assert row == "| work: time | other | 0.50 (0.50 to 0.50) | 0.4 | missed |"
    row = run.describe(race, timed, {}, Ratio((), 3, "peak"))
    assert "2.00 GiB" in row and "met" in row
    grown = {"vit_tf": [{"growth": 12.5}]}
    row = run.describe(race, grown, {}, Ratio((), 200, "growth"))
    assert row == "| work: growth of memory |  | 12.50 MB | 200 MB | met |"
    row = run.describe(race, timed, {"gone": "ImportError: no gone"}, Ratio(("gone",), 1))
    assert "not measured: ImportError: no gone" in row


@pytest.mark.slow
def test_growth_is_measured_apart_and_drawn(tmp_path, monkeypatch, capsys):
    points = {what: [(n, n / 10, 1.0) for n in sizes] for what, sizes in growth.SIZES.items()}
    monkeypatch.setattr(growth, "measure", lambda progress: points)
    assert (
        common.run_command(
            run.parse, run.run, ["--what", "growth", "--out", str(tmp_path / "g.png")]
        )
        == 0
    )
    assert (tmp_path / "g.png").stat().st_size > 10_000
    table = capsys.readouterr().out
    assert "1024 images compared with 128: time | itself | 8.00 | 8.00 | met" in table


def test_every_comparison_is_listed_and_errors_take_one_line(capsys):
    call = common.run_command
    assert call(run.parse, run.run, ["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*harness.MODULES, "growth"))
    wrong = {"Unknown --what": ["--what", "speed"], "Expected --rounds": ["--rounds", "0"]}
    for words, arguments in wrong.items():
        assert call(run.parse, run.run, arguments) == 2
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_probes_of_both_sides_agree(monkeypatch):
    """At a hundredth of the size, as the benchmark itself compares them."""
    from benchmarks import probes

    for name, value in {"EXAMPLES": 400, "TESTED": 100, "TOKENS": 3, "CHANNELS": 24}.items():
        monkeypatch.setattr(probes, name, value)
    item, other = (
        np.asarray(side()()) for side in probes.BENCHMARKS["probes"].implementations.values()
    )
    assert item.shape == other.shape == (3, len(probes.PENALTIES)) and other.max() > 0.15
    np.testing.assert_allclose(item, other, atol=0.011)  # one image of 100 at the margin
