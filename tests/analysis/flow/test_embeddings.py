"""Filters and positions of the first layer against other decompositions, and their plots."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from oracles import randomize

import vit_tf
from vit_tf import TokenGrid
from vit_tf.analysis import patch_filters, position_similarity as similarity
from vit_tf.analysis.plots import plot_patch_filters, plot_position_similarity

GRID = TokenGrid(3, 5, 1, 4)
TINY = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8, "mlp_dim": 8, "num_classes": 2}


def test_components_are_the_eigenvectors_of_the_covariance(rng):
    kernel = rng.normal(size=(3, 4, 2, 40)) * rng.uniform(0.1, 2, (3, 4, 2, 1)) + 5
    result = patch_filters(kernel, 20)
    values, vectors = np.linalg.eigh(np.cov(kernel.reshape(24, 40)))
    shares, vectors = values[:3:-1] / values.sum(), vectors[:, :3:-1].T
    np.testing.assert_allclose(result["explained_variance"], shares, atol=1e-12)
    found = result.values.reshape(20, 24)
    signs = np.sign((found * vectors).sum(axis=1))[:, None]
    np.testing.assert_allclose(found, signs * vectors, atol=1e-8)
    largest = found[np.arange(20), np.abs(found).argmax(axis=1)]
    assert (largest > 0).all() and result.attrs["hidden_units"] == 40


def sinusoids(grid, frequencies):
    """Embeddings of shape (token, hidden unit), of the spatial tokens only."""
    row, column = np.indices((grid.rows, grid.columns)).reshape(2, -1, 1) * frequencies
    return np.concatenate([np.sin(row), np.cos(row), np.sin(column), np.cos(column)], axis=1)


def test_similarity_of_sinusoids_depends_on_the_offset_alone(rng):
    frequencies = np.array([1.0, 0.3, 0.07])
    spatial = sinusoids(GRID, frequencies) * rng.uniform(0.5, 2, (15, 1))  # lengths do not matter
    result = similarity(np.concatenate([rng.normal(size=(1, 12)), spatial]), GRID)
    assert result.dims == ("row", "column", "other_row", "other_column")
    r, c, other_r, other_c = np.indices((3, 5, 3, 5))
    waves = np.cos((other_r - r)[..., None] * frequencies)
    waves = waves + np.cos((other_c - c)[..., None] * frequencies)
    np.testing.assert_allclose(result, waves.mean(axis=-1) / 2, atol=1e-12)


def embedded(model, images):
    """The spatial tokens of a model whose bias is zero, from its kernel and positions."""
    kernel, size = model.patch_kernel.astype(float), model.patch_kernel.shape[0]
    n, height, width, _ = images.shape
    x = images.reshape(n, height // size, size, width // size, size, 3)
    x = np.einsum("nrpcqk,pqkh->nrch", x, kernel).reshape(n, -1, kernel.shape[-1])
    positions = model.position_embedding
    return x if positions is None else x + model.token_grid.spatial(positions[None])


@pytest.mark.parametrize("kind", ["ViT", "CLIPViT", "BEiT", "Mixer"])
def test_models_embed_by_their_kernel_and_positions(rng, kind):
    shape, sizes = (8, 12, 3), dict(TINY)
    if kind == "Mixer":
        sizes = {"num_layers": 1, "hidden_dim": 8, "tokens_mlp_dim": 4, "channels_mlp_dim": 4}
    model = getattr(vit_tf, kind)(shape, 4, **sizes)
    randomize(model)
    for weight in model.embedding.weights:
        if weight.name == "bias":
            weight.assign(np.zeros(weight.shape))
    images = rng.normal(size=(2, *shape)).astype("float32")
    tokens = np.asarray(model.intermediates(images)["embedding"])
    found = embedded(model, images)
    np.testing.assert_allclose(model.token_grid.spatial(tokens), found, atol=1e-4)
    assert (model.position_embedding is None) == (kind in ("BEiT", "Mixer"))


def test_models_without_patches_of_the_image_or_positions_are_refused():
    bit = vit_tf.BiT((16, 16, 3), units=(1,), width_factor=0.5, num_classes=2)
    hybrid = vit_tf.HybridViT((8, 8, 3), 1, **TINY, stem_units=())
    assert bit.position_embedding is None and hybrid.position_embedding.shape == (5, 8)
    for model in (bit, hybrid):
        with pytest.raises(ValueError, match="model that embeds patches of the image"):
            patch_filters(model.patch_kernel)
    with pytest.raises(ValueError, match="or a model that adds them"):
        similarity(bit.position_embedding, bit.token_grid)


@pytest.mark.parametrize(
    "kernel, count, message",
    [
        (np.ones((4, 4, 3)), 1, r"\(4, 4, 3\)"),
        (np.eye(12).reshape(2, 2, 3, 12), 12, "from 1 to 11.*count=12"),
        (np.eye(30)[:12].reshape(2, 2, 3, 30), 13, "from 1 to 12"),
        (np.eye(12).reshape(2, 2, 3, 12), 0, "count=0"),
        (np.full((2, 2, 3, 20), 2.0), 3, "filters differ.*2 to 2"),
        (np.where(np.eye(12).reshape(2, 2, 3, 12), np.nan, 1), 3, "finite"),
    ],
)
def test_kernels_that_do_not_fit(kernel, count, message):
    with pytest.raises(ValueError, match=message):
        patch_filters(kernel, count)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[1:], "16, hidden unit"),
        (lambda x: x[None], "16, hidden unit"),
        (lambda x: x * (np.arange(16) != 3)[:, None], "norm 0 at spatial token 2"),
        (lambda x: x / (np.arange(16) != 3)[:, None], "norm inf at spatial token 2"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_positions_that_do_not_fit(rng, change, words):
    positions = rng.normal(size=(16, 4))
    positions[0] = 0  # the prefix has no place
    similarity(positions, GRID)
    with pytest.raises(ValueError, match=words):
        similarity(change(positions), GRID)


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_are_drawn_to_their_own_range(rng, channels):
    result = patch_filters(rng.normal(size=(4, 2, channels, 20)), 5).assign_attrs(model="small")
    axes = plot_patch_filters(result).panels
    assert len(axes) == 5 and "small" in axes[0].figure.axes[0].get_title()
    for ax, tile, share in zip(axes, result, result["explained_variance"].values, strict=True):
        drawn = ax.images[0].get_array()
        assert drawn.shape == (4, 2, 3) and ax.get_title() == f"{100 * share:.1f} %"
        scaled = (tile - tile.min()) / (tile.max() - tile.min())
        np.testing.assert_allclose(drawn, np.broadcast_to(scaled, drawn.shape))


def test_filters_that_cannot_be_drawn(rng):
    result = patch_filters(rng.normal(size=(4, 2, 2, 20)), 3)
    one = result.isel(channel=[0])
    for wrong, options, word in (
        (result, {}, "2 channels"),
        (one.drop_vars("explained_variance"), {}, "explained_variance"),
        (result[0], {}, "component"),
    ):
        with pytest.raises(ValueError, match=word):
            plot_patch_filters(wrong, **options)


def test_maps_of_similarity_lie_at_the_places_of_their_patches(rng):
    result = similarity(rng.normal(size=(16, 4)), GRID)
    ax = plot_position_similarity(result)
    image, cells = ax.images[0], ax.images[0].get_array().filled(np.nan)
    assert image.get_clim() == (-1, 1) and cells.shape == (3 * 4 - 1, 5 * 6 - 1)
    for row in range(3):
        for column in range(5):
            tile = cells[4 * row : 4 * row + 3, 6 * column : 6 * column + 5]
            np.testing.assert_allclose(tile, result[row, column], atol=1e-6)
            assert tile[row, column] == 1
    assert np.isnan(cells[3]).all() and np.isnan(cells[:, 5]).all()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("input patch column", "input patch row")
    assert [text.get_text() for text in ax.get_yticklabels()] == ["1", "2", "3"]
    np.testing.assert_allclose(ax.get_xticks(), [2, 8, 14, 20, 26])
    ax.figure.canvas.draw()
    names = [ax.xaxis.label, ax.yaxis.label, ax.title]
    boxes = [name.get_window_extent() for name in names]
    assert all(ax.figure.bbox.containsx(b.x0) and ax.figure.bbox.containsy(b.y0) for b in boxes)
    given = plt.figure().gca()
    assert plot_position_similarity(result, given) is given
    with pytest.raises(ValueError, match="other_row"):
        plot_position_similarity(result[0])
