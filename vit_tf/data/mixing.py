"""MixUp and CutMix: images made of two, with labels in proportion."""

import tensorflow as tf


def mix(images, labels, seed, mixers):
    """One of the mixers, at random, applied to a batch of images and labels."""
    # Seeds that neither the steps before nor each other take.
    coin = tf.random.stateless_uniform((), seed + 4, 0, len(mixers), tf.int32)
    return tf.switch_case(coin, [lambda m=m: m(images, labels, seed + 5) for m in mixers])


def blend(images, labels, seed, alpha):
    """MixUp: each image and its label averaged with another's, by weights of its own."""
    weight, partner = _weights_and_partners(images, alpha, seed)
    share = weight[:, None, None, None]
    images = share * images + (1.0 - share) * tf.gather(images, partner)
    return images, _average(labels, weight, partner)


def cut(images, labels, seed, alpha):
    """CutMix: a rectangle of each image from another, labels weighted by the visible areas."""
    height, width = images.shape[1:3]
    weight, partner = _weights_and_partners(images, alpha, seed)
    side = tf.sqrt(1.0 - weight)
    inside = _within(side, height, seed + 3)[:, :, None] & _within(side, width, seed + 4)[:, None]
    images = tf.where(inside[..., None], tf.gather(images, partner), images)
    own = 1.0 - tf.reduce_mean(tf.cast(inside, tf.float32), axis=(1, 2))
    return images, _average(labels, own, partner)


def _weights_and_partners(images, alpha, seed):
    """Draws of Beta(alpha, alpha) and a permutation, both of shape (example,)."""
    count = tf.shape(images)[:1]
    # In float64, since both draws of a small alpha are often 0 in float32.
    first, second = (
        tf.random.stateless_gamma(count, seed + k, alpha, dtype=tf.float64) for k in range(2)
    )
    weight = tf.cast(tf.math.divide_no_nan(first, first + second), tf.float32)
    return weight, tf.argsort(tf.random.stateless_uniform(count, seed + 2))


def _average(labels, weight, partner):
    return weight[:, None] * labels + (1.0 - weight[:, None]) * tf.gather(labels, partner)


def _within(side, pixels, seed):
    """Which pixels, (example, pixel), lie in an interval of a share `side` around a random one."""
    length = tf.cast(side * pixels, tf.int32)
    center = tf.random.stateless_uniform(tf.shape(side), seed, 0, pixels, tf.int32)
    place = tf.range(pixels) - (center - length // 2)[:, None]
    return (place >= 0) & (place < length[:, None])
