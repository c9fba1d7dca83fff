"""Amplitudes next to NumPy's Fourier transform, and of filters whose transform is known."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import TokenGrid, analysis


def amplitude(maps, grid=None, **layers):
    """The amplitudes of arrays by layer."""
    return analysis.frequency_amplitude({"map": maps, **layers}, grid=grid)


@pytest.mark.parametrize("size", [(8, 8), (6, 10), (7, 5), (1, 4)])
def test_equals_the_fourier_transform(rng, size):
    maps = rng.normal(size=(9, *size, 4)).astype("float32") + 1
    spectrum = np.abs(np.fft.fft2(maps.astype("float64"), axes=(1, 2)))
    logarithm = np.log(spectrum)
    rows, columns = (np.rint(np.linspace(0, 1, 5) * (n // 2)).astype(int) for n in size)
    expected = (logarithm[:, rows, columns] - logarithm[:, :1, 0]).mean(axis=-1)
    tokens = np.concatenate([rng.normal(size=(9, 2, 4)), maps.reshape(9, -1, 4)], axis=1)
    grid = TokenGrid(*size, prefix=2, stride=1)
    result = amplitude(maps, grid, tokens=tokens.astype("float32"), vector=maps[:, 0, 0])
    assert list(result.layer) == ["map", "tokens"]
    for layer in ("map", "tokens"):
        one = result.sel(layer=layer)
        np.testing.assert_allclose(one.amplitude, expected.mean(axis=0), rtol=1e-5, atol=1e-5)
        error = expected.std(axis=0, ddof=1) / 3
        np.testing.assert_allclose(one.stderr, error, rtol=1e-4, atol=1e-6)


def test_an_impulse_is_white_a_blur_gaussian_and_uniform_attention_constant():
    impulse = np.zeros((2, 16, 16, 1), "float32")
    impulse[:, 3, 5] = 1
    # A periodic Gaussian blur, by its own transform.
    w = np.fft.fftfreq(16) * 2 * np.pi
    s = 0.8
    gain = np.exp(-(s**2) * (w[:, None] ** 2 + w**2) / 2)
    blurred = np.fft.ifft2(np.fft.fft2(impulse[..., 0]) * gain).real[..., None]
    uniform = np.full_like(impulse, impulse.mean())
    result = amplitude(impulse, blurred=blurred, uniform=uniform)
    np.testing.assert_allclose(result.amplitude.sel(layer="map"), 0, atol=1e-5)
    squared = result.angular_frequency.sel(layer="blurred") ** 2
    np.testing.assert_allclose(
        result.amplitude.sel(layer="blurred"), -(s**2) * squared / 2, rtol=1e-5, atol=1e-5
    )
    assert (result.amplitude.sel(layer="uniform")[1:] < -15).all()  # rounding of float32
    np.testing.assert_allclose(result.angular_frequency[0, -1], np.pi * np.sqrt(2))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scale_does_not_matter_and_batches_neither(rng, scale):
    maps = rng.normal(size=(10, 4, 6, 3)).astype("float32")
    expected = amplitude(maps)
    data = tf.data.Dataset.from_tensor_slices(maps).batch(4)
    result = analysis.frequency_amplitude(lambda x: {"map": scale * x}, data)
    np.testing.assert_allclose(result.amplitude, expected.amplitude, rtol=1e-4, atol=1e-5)
    # Batches of 4, 4 and 2 images, each of which weighs as much as it has images.
    assert "leave_one_out" not in expected
    for at, kept in enumerate((maps[4:], np.delete(maps, slice(4, 8), 0), maps[:8])):
        without = amplitude(kept).amplitude
        np.testing.assert_allclose(result.leave_one_out[at], without, rtol=1e-4, atol=1e-5)


def test_layers_without_positions_or_amplitude_are_refused(rng):
    x = rng.normal(size=(4, 3, 3, 2)).astype("float32")
    with pytest.raises(ValueError, match="maps"):
        analysis.frequency_amplitude({"vector": x[:, 0, 0]})
    with pytest.raises(ValueError, match="at dead"):
        amplitude(x, dead=np.zeros_like(x))
    with pytest.raises(ValueError, match="at bad"):
        amplitude(x, bad=np.full_like(x, np.nan))


def test_one_massive_channel_counts_like_any_other_and_a_dead_one_does_not(rng):
    """One of 768 channels with a large offset would decide a mean of the power."""
    maps = rng.normal(size=(4, 6, 6, 768)).astype("float32")
    massive, dead = maps.copy(), maps.copy()
    massive[..., 0] += 30
    dead[..., :300] = 0
    result = amplitude(maps, massive=massive, dead=dead).amplitude
    difference = abs(result.sel(layer="massive") - result.sel(layer="map")).max()
    assert difference < 10 / 768
    others = amplitude(maps[..., 300:]).amplitude.sel(layer="map")
    np.testing.assert_allclose(result.sel(layer="dead"), others, atol=1e-6)
