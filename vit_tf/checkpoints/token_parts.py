"""The prefix tokens of a ViT's file, and its positions."""

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


def vit_embedding_part(tensors, names, stride, channels, wishes, image_shape=None, pooling=None):
    """The `Part` of a ViT's positions and prefix tokens.

    They determine its images, unless `image_shape` does, and its pooling. Those of registers are
    added to these.

    Args:
        tensors, wishes: those of the plan.
        names: the `TokenNames` of the file.
        stride: pixels from token to token.
        channels: channels of the images.
        image_shape: (height, width, ...) of the file's images, where it states them.
        pooling: as for `unplaced_part`.
    """
    _, num_positions, width = dims(tensors, names.positions, 3)
    tokens = unplaced_part(tensors, names, width, wishes, pooling)
    first = [n for n in (names.class_token, names.distillation) if n in tensors]
    registers = tokens.arguments.get("registers", 0)
    counts = dict.fromkeys((len(first), 0, len(first) + registers))
    grid = file_grid(num_positions, tuple(counts), stride, wishes.image_shape, image_shape)
    shape = (1, num_positions, width)
    part = Part({"image_shape": pixels(grid, channels)}) | tokens
    prefix = tokens.sources.get("embedding/prefix")
    if grid.prefix > len(first):
        both = Source(prefix.tensors | {names.positions: shape}, add_positions)
        patches = Source({names.positions: shape}, grid.spatial)
        placed = {"embedding/prefix": both, "embedding/positions": patches}
        return part | Part({"class_position": False}, placed)
    # That of a class token which the file lacks, or keeps free of positions, is left out.
    placed = len(tokens.new) if prefix is None else min(len(first), grid.prefix)
    fit = partial(fit_positions, grid=grid, prefix=placed)
    part |= Part(sources={"embedding/positions": Source({names.positions: shape}, fit)})
    return part | Part({"class_position": bool(placed)} if prefix or tokens.new else {})


def add_positions(*arrays):
    """Tokens of shape (1, token, channel) as one, with the first of the positions added."""
    *tokens, positions = arrays
    tokens = in_a_row(*tokens)
    return tokens + positions[:, : tokens.shape[1]]


def unplaced_part(tensors, names, width, wishes, pooling=None):
    """The `Part` of the prefix tokens, which determine the pooling of a ViT.

    A class token goes where the caller asks for the mean of the patches, and nothing else needs it.

    Args:
        tensors, wishes: those of the plan.
        names: the `TokenNames` of the file.
        width: channels of a token.
        pooling: that of the file, where it is not the one that follows from its tokens.
    """
    first = [n for n in (names.class_token, names.distillation) if n in tensors]
    sizes = dict.fromkeys(first, (1, 1, width))
    registers = 0
    if names.registers in tensors and tensors[names.registers].shape != (1, 0, width):
        registers = dims(tensors, names.registers, 3)[1]
        sizes[names.registers] = (1, registers, width)
    told = wishes.config.get("pooling") or pooling or ("cls" if first else "gap")
    pooling = wishes.pooling or told
    if pooling == "map" or (pooling == "gap" and names.distillation in tensors):
        raise ValueError(
            "Expected pooling to be 'cls', or 'gap' for a file without a token of distillation. "
            f"Received: pooling={pooling!r}, {', '.join(sizes)}"
        )
    # transformers writes an empty tensor where there are no registers.
    part = Part({"pooling": pooling}, unused=() if registers else (str(names.registers),))
    if pooling == "gap" and told != "gap" and not registers:
        return part | Part(unused=(names.class_token,))
    part |= Part({"registers": registers})
    if not sizes:
        return part | Part(new=("embedding/prefix",) if pooling == "cls" else ())
    if pooling == "gap" and first:
        part |= Part({"class_token": True})
    if pooling == "cls" and not first:
        raise ValueError(
            "Expected pooling to be 'gap' for a file with registers and no class token. "
            f"Received: pooling='cls', {', '.join(sizes)}"
        )
    return part | Part(sources={"embedding/prefix": Source(sizes, in_a_row)})


def in_a_row(*tokens):
    """Arrays of shape (1, token, channel) as one."""
    return np.concatenate(tokens, axis=1)


def file_grid(num_positions, prefixes, stride, wished=None, told=None):
    """The `TokenGrid` of a file's positions, which determine the size of its images.

    It is that of the images that the file states, or else of those that are requested if they have
    as many tokens; else it is square.

    Args:
        num_positions: number of positions in the file.
        prefixes: numbers of the file's prefix tokens that may have a position.
        stride: pixels from token to token.
        wished, told: (height, width, ...) of the images requested, and stated in the file, if any.

    Raises:
        ValueError: for a number of positions that fits neither.
    """
    height, width = (told or wished or (0, 0))[:2]
    if height % stride == width % stride == 0:
        rows, columns = height // stride, width // stride
        for prefix in prefixes:
            if rows and columns and rows * columns == num_positions - prefix:
                return TokenGrid(rows, columns, prefix, stride)
    for prefix in prefixes if told is None else ():
        side = _root(num_positions - prefix)
        if side:
            return TokenGrid(side, side, prefix, stride)
    raise ValueError(
        "Expected as many positions as a square grid of tokens has, or that of image_shape. "
        f"Received: {num_positions} positions, image_shape={told or wished}"
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
