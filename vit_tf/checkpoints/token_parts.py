"""The tokens of a ViT's file that have no place, and its positions."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import Part, dims
from vit_tf.tokens import TokenGrid


@dataclass(frozen=True)
class TokenNames:
    """Names of a file's tensors; all but the positions may be missing in the file.

    Positions are None for a family without them.
    """

    positions: str | None
    class_token: str
    distillation: str | None = None
    registers: str | None = None


def vit_embedding_part(tensors, names, stride, channels, wishes, image_shape=None):
    """The `Part` of a ViT's positions and tokens without a place.

    They tell its images, unless `image_shape` does, and its pooling.

    Args:
        tensors, wishes: those of the plan.
        names: the `TokenNames` of the file.
        stride: pixels from token to token.
        channels: channels of the images.
        image_shape: (height, width, ...) of the file's images, where it tells.
    """
    _, num_positions, width = dims(tensors, names.positions, 3)
    tokens = unplaced_part(tensors, names, width, wishes)
    first = [n for n in (names.class_token, names.distillation) if n in tensors]
    pooling = tokens.arguments["pooling"]
    grid = file_grid(num_positions, len(first), stride, wishes.image_shape, image_shape)
    # That of a class token which the file lacks, or keeps free of positions, is left out.
    placed = 0 if pooling == "gap" or (first and not grid.prefix) else max(len(first), 1)
    fit = partial(fit_positions, grid=grid, prefix=placed)
    part = Part(
        {"image_shape": pixels(grid, channels)},
        {"embedding/positions": Source({names.positions: (1, num_positions, width)}, fit)},
    )
    return part | tokens | Part({"class_position": bool(placed)} if pooling == "cls" else {})


def unplaced_part(tensors, names, width, wishes):
    """The `Part` of the tokens without a place, which tell the pooling of a ViT.

    Args:
        tensors, wishes: those of the plan.
        names: the `TokenNames` of the file.
        width: channels of a token.
    """
    first = [n for n in (names.class_token, names.distillation) if n in tensors]
    sizes = dict.fromkeys(first, (1, 1, width))
    registers = 0
    if names.registers in tensors and tensors[names.registers].shape != (1, 0, width):
        registers = dims(tensors, names.registers, 3)[1]
        sizes[names.registers] = (1, registers, width)
    pooling = wishes.pooling or ("cls" if first else "gap")
    if len(sizes) > 1 and pooling == "gap":
        raise ValueError(
            "Expected pooling to be 'cls' for a file with registers or a token of distillation. "
            f"Received: pooling='gap', {', '.join(sizes)}"
        )
    # transformers writes an empty tensor where there are no registers.
    part = Part({"pooling": pooling}, unused=() if registers else (str(names.registers),))
    if pooling == "gap":
        return part | Part(unused=(names.class_token,))
    part |= Part({"registers": registers})
    if not sizes:
        return part | Part(new=("embedding/prefix",))
    return part | Part(sources={"embedding/prefix": Source(sizes, in_a_row)})


def in_a_row(*tokens):
    """Arrays of shape (1, token, channel) as one."""
    return np.concatenate(tokens, axis=1)


def file_grid(num_positions, num_tokens, stride, wished=None, told=None):
    """The `TokenGrid` of a file's positions, which tell the size of its images.

    It is that of the images that the file tells. Where it tells none, it is square, unless only
    that of the images that are wished for has as many tokens.

    Args:
        num_positions: number of positions in the file.
        num_tokens: number of the file's tokens without a place that may have a position; either
            all of them have one, or none.
        stride: pixels from token to token.
        wished, told: (height, width, ...) of the images wished for, and told, if any.

    Raises:
        ValueError: for a number of positions that fits neither.
    """
    prefixes = (num_tokens, 0) if num_tokens else (0,)
    for prefix in prefixes if told is None else ():
        side = _root(num_positions - prefix)
        if side:
            return TokenGrid(side, side, prefix, stride)
    shape = wished if told is None else told
    if shape is not None:
        for prefix in prefixes:
            grid = TokenGrid.of_patches(shape, stride, prefix)
            if grid.num_tokens == num_positions:
                return grid
    raise ValueError(
        "Expected as many positions as a square grid of tokens has, or that of image_shape. "
        f"Received: {num_positions} positions, image_shape={shape}"
    )


def pixels(grid, channels):
    """The (height, width, channels) of the images that a grid covers."""
    return (grid.rows * grid.stride, grid.columns * grid.stride, channels)


def _root(number):
    """The square root of a square number above 0; None for any other."""
    root = math.isqrt(max(number, 0))
    return root if root and root**2 == number else None


def fit_positions(positions, grid, prefix):
    """A file's positions as (1, token, channel) of a model with `prefix` tokens in front.

    A class token that the model does not have loses its position; one that the file adds after
    the positions gets none.
    """
    positions = positions.reshape(1, grid.num_tokens, -1)
    if prefix == grid.prefix:
        return positions
    if prefix < grid.prefix:
        return grid.spatial(positions)
    return np.concatenate([np.zeros_like(positions[:, :prefix]), positions], axis=1)
