"""How often each 95 % interval holds a known truth: `pytest -m slow -k coverage -n 0 -s`.

Each simulation prints its coverage and mean width, with those of the interval that was in use
before.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import xarray as xr
from scipy import stats
from sklearn.datasets import load_digits
from study_parts import model_like

import vit_tf
from vit_tf.analysis.engine.estimates import estimate_from_cka
from vit_tf.analysis.engine.results import pack_correct
from vit_tf.analysis.papers.raghu.section4_structure import FIGURE_1, between_halves
from vit_tf.analysis.papers.raghu.section7_tokens import best_probe
from vit_tf.analysis.papers.walmer.section6_tasks import score_best_layer
from vit_tf.analysis.report.scorecard import evaluate
from vit_tf.analysis.statistics.estimates import (
    accuracy_of,
    beyond,
    corrected,
    jackknife_over,
    mean_of,
    mean_over,
    minus,
    over_runs,
    share_of,
)
from vit_tf.analysis.statistics.intervals import newcombe_paired, pair_counts, wilson

pytestmark = pytest.mark.slow
# CIFAR-10's 10,000 test images: both right, only vit-cls-cifar10, only vit-gap-cifar10, neither.
CLS_AND_GAP = np.array([4808, 1044, 873, 3275])


class Coverage:
    """Counts how often intervals hold the truth, and their widths, where there is one."""

    def __init__(self):
        self.covered, self.widths, self.without = [], [], 0

    def add(self, low, high, truth):
        if np.isnan(low):  # descriptive
            self.without += 1
            return
        self.covered.append(low <= truth <= high)
        self.widths.append(high - low)

    def add_estimate(self, estimate, truth):
        self.add(*(estimate.interval or (np.nan, np.nan)), truth)

    def add_normal(self, value, error, truth):
        self.add(value - 1.96 * error, value + 1.96 * error, truth)

    @property
    def percent(self):
        return 100 * np.mean(self.covered)

    def __str__(self):
        without = f", {self.without} without" if self.without else ""
        return f"{self.percent:5.1f} % (median width {np.median(self.widths):.3g}{without})"


def is_outside(gap):
    """Whether an interval leaves out 0."""
    return gap.interval[0] > 0 or gap.interval[1] < 0


def reported(case, after, before, low=93, high=97):
    """Prints a row and checks the coverage, but for one standard error of the simulation."""
    print(f"\n{case}: before {before}, after {after}", end="")
    slack = 100 * np.sqrt(0.05 * 0.95 / len(after.covered))
    assert low - slack <= after.percent <= high + slack


def percentile(statistic, *samples, rng, draws=400):
    """The bootstrap that was in use before."""
    drawn = [s[rng.integers(len(s), size=(draws, len(s)))] for s in samples]
    return np.percentile(statistic(*drawn), [2.5, 97.5])


def mean_gap(one, other):
    return one.mean(axis=1) - other.mean(axis=1)


@pytest.fixture(scope="module")
def kernels():
    """Kernels of three blocks of each of two bundled models on digits: (layer, image, image)."""
    images = load_digits().images[:600].astype("float32") / 8 - 1
    images = np.repeat(np.kron(images, np.ones((4, 4), "float32"))[..., None], 3, axis=-1)
    found = []
    for name in ("vit-cls-cifar10", "vit-gap-cifar10"):
        model = vit_tf.load_pretrained(name)
        taps = vit_tf.submodel(model, "block0[135]/mlp/sum")
        layers = [taps(images[i : i + 100]) for i in range(0, len(images), 100)]
        flat = [
            np.concatenate([np.asarray(batch[tap]).reshape(100, -1) for batch in layers])
            for tap in layers[0]
        ]
        flat = [x - x.mean(axis=0) for x in flat]
        found += [x @ x.T / np.square(x).sum() for x in flat]
    return np.stack(found).astype(np.float64)


def hsic_of_batch(kernels, chosen):
    """The unbiased HSIC of Song et al. 2012 of all pairs of layers, for the chosen images."""
    k = kernels[:, chosen[:, None], chosen].copy()
    n = len(chosen)
    k[:, range(n), range(n)] = 0
    rows, flat = k.sum(axis=2), k.reshape(len(k), -1)
    total = rows.sum(axis=1)
    terms = flat @ flat.T + np.outer(total, total) / ((n - 1) * (n - 2))
    return (terms - 2 / (n - 2) * rows @ rows.T) / (n * (n - 3))


def cka(hsic):
    norm = np.sqrt(np.diagonal(hsic, axis1=-2, axis2=-1))
    return hsic / norm[..., :, None] / norm[..., None, :]


def cka_result(hsic, batch_size):
    rest = cka(hsic.sum(axis=0) - hsic)
    dims = ("layer_x", "layer_y")
    data = {"cka": (dims, cka(hsic.sum(axis=0))), "leave_one_out": (("batch", *dims), rest)}
    return xr.Dataset(data, attrs={"examples": len(hsic) * batch_size, "batch_size": batch_size})


@pytest.fixture(scope="module")
def pool_of_hsic(kernels):
    """HSIC of batches of 50 images drawn with replacement, and the CKA of all images."""
    rng = np.random.default_rng(0)
    batches = rng.integers(kernels.shape[1], size=(3000, 50))
    centred = kernels - kernels.mean(axis=1, keepdims=True) - kernels.mean(axis=2, keepdims=True)
    centred = (centred + kernels.mean(axis=(1, 2), keepdims=True)).reshape(len(kernels), -1)
    return np.stack([hsic_of_batch(kernels, batch) for batch in batches]), cka(centred @ centred.T)


OF_CKA = {
    "one": lambda values: between_halves(values[:3, :3]),
    "other": lambda values: between_halves(values[3:, 3:]),
    "best matches": lambda values: values[:3, 3:].max(axis=1).mean(),
}


# The numbers of units between the smallest and the largest are nightly runs.
LONG = pytest.mark.long


@pytest.mark.parametrize("batches", [2, *(pytest.param(n, marks=LONG) for n in (4, 6)), 9])
def test_coverage_of_cka_and_of_its_paired_difference(pool_of_hsic, batches):
    """Features of two bundled models on resampled digits, batches of 50 images."""
    pool, truth = pool_of_hsic
    rng = np.random.default_rng(batches)
    truths = {name: statistic(truth) for name, statistic in OF_CKA.items()}
    rows = {name: (Coverage(), Coverage()) for name in ("one", "best matches", "gap")}
    for _ in range(1000):
        result = cka_result(pool[rng.integers(len(pool), size=batches)], 50)
        found = {name: estimate_from_cka(statistic, result) for name, statistic in OF_CKA.items()}
        for name in ("one", "best matches"):
            rows[name][0].add_estimate(found[name], truths[name])
            rows[name][1].add_normal(found[name].value, found[name].error[0], truths[name])
        gap = minus(found["one"], found["other"])
        difference = truths["one"] - truths["other"]
        rows["gap"][0].add_estimate(gap, difference)
        error = np.hypot(found["one"].error[0], found["other"].error[0])
        rows["gap"][1].add_normal(gap.value, error, difference)
    reported(f"CKA, {batches} batches", *rows["one"])
    reported(f"difference of CKA, {batches} batches", *rows["gap"])
    reported(f"mean CKA of best matches, {batches} batches", *rows["best matches"])


def draw_correct(rng, counts, images):
    """Truth values of two models on the same images, with these shares of the four outcomes."""
    outcome = rng.choice(4, size=images, p=counts / counts.sum())
    return outcome < 2, outcome % 2 == 0


@pytest.mark.parametrize("images", [100, 1000])
def test_coverage_of_a_paired_difference_of_accuracy(images):
    """Two models that agree as those of CIFAR-10 do."""
    rng, after, before = np.random.default_rng(0), Coverage(), Coverage()
    truth = (CLS_AND_GAP[1] - CLS_AND_GAP[2]) / CLS_AND_GAP.sum()
    for _ in range(4000):
        one, other = draw_correct(rng, CLS_AND_GAP, images)
        after.add(*newcombe_paired(*pair_counts(one, other)), truth)
        p, q = one.mean(), other.mean()
        before.add_normal(p - q, np.sqrt((p * (1 - p) + q * (1 - q)) / images), truth)
    reported(f"difference of accuracy on the same {images} images", after, before)


def test_coverage_of_the_difference_of_cls_and_gap():
    """The share of samples of 1,000 images in which 58.5 and 56.8 % differ significantly."""
    rng, significant = np.random.default_rng(0), []
    population = np.repeat(np.arange(4), CLS_AND_GAP)
    for _ in range(2000):
        outcome = rng.choice(population, 1000, replace=False)
        pair = [share_of(outcome < 2), share_of(outcome % 2 == 0)]
        paired = minus(*pair)
        unpaired = minus(*(accuracy_of(one.value, 1000) for one in pair))
        significant.append([is_outside(gap) for gap in (unpaired, paired)])
    unpaired, paired = 100 * np.mean(significant, axis=0)
    print(f"\nCLS and GAP differ significantly: unpaired {unpaired:.1f} %, paired {paired:.1f} %")
    assert 1 < unpaired < 3 and 20 < paired < 26


@pytest.mark.parametrize("accuracy", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("images", [100, 1000])
def test_coverage_of_accuracy(images, accuracy):
    """Exact, and averaged over accuracies within one image or a tenth of the distance to 1."""
    counts = np.arange(images + 1)
    ends = np.array([wilson(count, images) for count in counts])
    shares = counts / images
    reach = 1.96 * np.sqrt(shares * (1 - shares) / images)
    near = accuracy + np.linspace(-1, 1, 101) * max(0.1 * (1 - accuracy), 0.5 / images)
    rows = Coverage(), Coverage()
    for truth in near:
        weights = stats.binom.pmf(counts, images, truth)
        for row, (low, high) in zip(rows, (ends.T, (shares - reach, shares + reach)), strict=True):
            row.covered.append(weights @ ((low <= truth) & (truth <= high)))
            row.widths.append(weights @ (high - low))
    print(f" [least {100 * min(rows[0].covered):.1f} %]", end="")
    reported(f"accuracy {accuracy} of {images} images", *rows)


SHAPES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "uniform": lambda rng, size: rng.uniform(-1.7, 1.7, size),
    "skewed": lambda rng, size: rng.gamma(4, 0.5, size) - 2,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("units", [3, *(pytest.param(n, marks=LONG) for n in (4, 6)), 12])
def test_coverage_of_means_over_videos_or_runs(units, shape):
    """Student's t supposes normal values: of few uniform or skewed ones it covers 92 to 93 %."""
    rng, rows = np.random.default_rng(units), [Coverage() for _ in range(4)]
    for trial in range(1500):
        one = SHAPES[shape](rng, units)
        other = SHAPES[shape](rng, units) * (1 if trial % 2 else 2)
        found, gap = mean_over(one, "videos"), over_runs(np.stack([one, -other], axis=1))
        rows[0].add_estimate(found, 0)
        rows[1].add(*percentile(lambda x: x.mean(axis=1), one, rng=rng), 0)
        rows[2].add_estimate(gap, 0)
        rows[3].add(*percentile(mean_gap, one, other, rng=rng), 0)
    reported(f"mean of {units} {shape} videos", *rows[:2], low=93 if shape == "normal" else 92)
    reported(f"two arms of {units} {shape} runs", *rows[2:])


def draw_layers(rng, accuracies, images):
    """Truth values (layer, image): some images are hard for all layers."""
    hard = rng.normal(size=images)
    own = rng.normal(size=(len(accuracies), images))
    quantile = stats.norm.ppf(accuracies)[:, None]
    return np.sqrt(0.7) * hard + np.sqrt(0.3) * own < quantile


def probe_result(correct, validation):
    coords = {"correct": ("layer", pack_correct(correct))}
    coords["validation_accuracy"] = ("layer", validation.mean(axis=1))
    attrs = {"examples": correct.shape[1]}
    return xr.DataArray(correct.mean(axis=1), coords, "layer", attrs=attrs)


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_coverage_of_the_best_layer(spread):
    """Fourteen layers; the truth is the accuracy of the layer that is chosen."""
    rng = np.random.default_rng(0)
    accuracies = 0.6 - spread * np.arange(14)[::-1] / 13
    rows = [Coverage() for _ in range(4)]
    for _ in range(1500):
        test, held_out = (draw_layers(rng, accuracies, 500) for _ in range(2))
        found = best_probe.estimator(probe_result(test, held_out))
        chosen = held_out.mean(axis=1).argmax()
        rows[0].add_estimate(found, accuracies[chosen])
        best = test.mean(axis=1).max()
        rows[1].add_normal(best, np.sqrt(best * (1 - best) / 500), accuracies.max())
        gap = minus(*(share_of(c) for c in (test[-1], score_best_layer(test[:-1]))))
        picked = [accuracies[test[:-1, start::2].mean(axis=1).argmax()] for start in (0, 1)]
        rows[2].add_estimate(gap, accuracies[-1] - np.mean(picked))
        last, other = test[-1].mean(), test[:-1].mean(axis=1).max()
        error = np.sqrt((last * (1 - last) + other * (1 - other)) / 500)
        rows[3].add_normal(last - other, error, accuracies[-1] - accuracies[-2])
    reported(f"best of 14 layers that differ by {spread}", *rows[:2])
    reported(f"last minus best of 13 layers that differ by {spread}", *rows[2:])


def test_coverage_of_a_jackknife_of_a_ratio():
    """The ratio of sums over batches, as CKA is, of skewed terms."""
    rng, after, before = np.random.default_rng(0), Coverage(), Coverage()
    for _ in range(3000):
        terms = rng.gamma(8, 1, (6, 2)) @ [[1, 0.5], [0, 1]]
        above, below = terms.sum(axis=0)
        rest = (above - terms[:, 0]) / (below - terms[:, 1])
        found = jackknife_over(above / below, rest, 60)
        after.add_estimate(found, 8 / 12)
        before.add_normal(found.value, found.error[0], 8 / 12)
    reported("ratio of sums over 6 batches", after, before)


@pytest.mark.parametrize(("shared", "own"), [(1.0, 0.3), (0.3, 1.0), (1.0, 1.0)])
def test_coverage_of_an_effect_beyond_copies_of_the_first_batches(shared, own):
    """18 batches of the trained model, 4 of its copies.

    A batch adds numbers of standard deviation `shared` to all models and of `own` to each of them.
    Before, the numbers were not paired.
    """
    rng, found, before = np.random.default_rng(0), Coverage(), Coverage()
    for _ in range(3000):
        of_batches = shared * rng.normal(size=18)
        trained = 0.3 + of_batches + own * rng.normal(size=18)
        copies = of_batches[:4] + own * rng.normal(size=(2, 4))
        of_trained = mean_over(trained, "batches", 1000)
        of_copies = [mean_over(copy, "batches", 224) for copy in copies]
        found.add_estimate(beyond(of_trained, of_copies), 0.3)
        before.add_estimate(minus(of_trained, mean_of(of_copies)), 0.3)
    reported(f"copies on 4 of 18 batches, shared {shared}, own {own}", found, before)


EQUAL = {
    "accuracy of 1,000 own images": lambda rng, k: [
        accuracy_of(rng.binomial(1000, 0.58) / 1000, 1000) for _ in range(k)
    ],
    "accuracy on the same 1,000 images": lambda rng, k: [
        share_of(correct) for correct in draw_layers(rng, np.full(k, 0.58), 1000)
    ],
    "CKA over the same 9 batches": lambda rng, k: [
        mean_over(values, "batches", 900) for values in rng.normal(size=(k, 9)) + rng.normal(size=9)
    ],
}


@pytest.mark.parametrize("models", [2, pytest.param(4, marks=LONG), 10])
@pytest.mark.parametrize("name", EQUAL)
def test_coverage_of_all_comparisons_of_equal_models(name, models):
    """In at most 5 % of the simulations any pair of equal models differs significantly."""
    rng, after, before = np.random.default_rng(models), [], []
    for _ in range({2: 8000, 4: 1000, 10: 200}[models]):
        made = EQUAL[name](rng, models)
        gaps = [minus(one, other) for one, other in combinations(made, 2)]
        before.append(any(is_outside(gap) for gap in gaps))
        after.append(any(is_outside(gap) for gap in corrected(gaps)))
    wrong = 100 * np.mean(after)
    print(f"\nany of {models} equal models, {name}: {100 * np.mean(before):.1f} %, {wrong:.1f} %")
    assert wrong <= 5 + 300 * np.sqrt(0.05 * 0.95 / len(after))


def two_layers(rng, shared):
    """CKA of a model of two layers over 9 batches: 0.5 with noise of its own and of the images."""
    of_batches = 0.5 + 0.01 * (shared + rng.normal(size=9))
    rest = (of_batches.sum() - of_batches) / 8
    both = np.array([of_batches.mean(), *rest])[:, None, None] * (1 - np.eye(2)) + np.eye(2)
    dims = ("layer_x", "layer_y")
    data = {"cka": (dims, both[0]), "leave_one_out": (("batch", *dims), both[1:])}
    return xr.Dataset(data, attrs={"examples": 900, "batch_size": 100})


# Of two models the scorecard corrects nothing; that of ten corrects as that of four does.
@pytest.mark.parametrize("count", [*(pytest.param(n, marks=LONG) for n in (2, 4)), 10])
def test_coverage_of_a_scorecard_of_equal_models(count):
    """In at most 5 % of the simulations is a claim on any pair of ViT and ResNet decided."""
    rng, before, after = np.random.default_rng(count), [], []
    roles = ["vit", "resnet"] * (count // 2)
    models = [model_like(str(at), role) for at, role in enumerate(roles)]
    of_trained = replace(FIGURE_1.claims[0], beyond_untrained=False)
    figure = replace(FIGURE_1, claims=(of_trained,))
    for _ in range({2: 4000, 4: 1000, 10: 100}[count]):
        shared = rng.normal(size=9)
        results = {f"cka.{model.slug}": two_layers(rng, shared) for model in models}
        claims = evaluate([figure], models, results)
        # Any difference is of interest here, for the correction alone.
        after.append(any(is_outside(claim.estimate) for claim in claims))
        own = [estimate_from_cka(between_halves, results[f"cka.{model.slug}"]) for model in models]
        gaps = [minus(one, other) for one in own[::2] for other in own[1::2]]
        assert len(gaps) == len(claims)
        before.append(any(is_outside(gap) for gap in gaps))
    wrong = 100 * np.mean(after)
    print(f"\nscorecard of {count} equal models: {100 * np.mean(before):.1f} %, {wrong:.1f} %")
    assert wrong <= 5 + 200 * np.sqrt(0.05 * 0.95 / len(after))
