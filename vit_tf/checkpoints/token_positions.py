"""What a file says of a ViT's images, prefix tokens, positions and heads."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from vit_tf.checkpoints.weight_maps import Transform, WeightMap, dims
from vit_tf.tokens import TokenGrid

# Heads by width and number of layers, which no tensor's shape shows: those of published sizes.
HEADS = {(192, 12): 3, (384, 12): 6, (512, 12): 8, (768, 12): 12, (1024, 24): 16, (1280, 32): 16}
HEADS |= {(1536, 40): 24}
# The same of CLIP (OpenAI, open_clip and timm 1.0.31).
CLIP_HEADS = HEADS | {(896, 12): 14, (1408, 40): 16, (1664, 48): 16}


class TokenNames(NamedTuple):
    """Names of a file's tensors; all but the positions may be missing in the file.

    Positions are None for a family without them.
    """

    positions: str | None
    class_token: str
    distillation: str | None = None
    registers: str | None = None


def infer_num_heads(width, layers, options, other=None, known=HEADS):
    """The number of heads that the caller names, or that all models of a published size have.

    `other` is the number of heads of another model of this size that the file may be of as well.
    """
    num_heads = options.num_heads or options.config.get("num_heads")
    if num_heads is not None:
        return num_heads
    heads = known.get((width, layers))
    if heads is None or other is not None:
        either = f" ({heads} or {other})" if heads else ""
        raise ValueError(
            f"Expected num_heads{either}, which neither the tensors' shapes nor {layers} layers "
            f"of {width} channels determine. Received: num_heads=None"
        )
    return heads


def embedding_map(tensors, names, stride, channels, options, image_shape=None, pooling=None):
    """The `WeightMap` of a ViT's positions and prefix tokens.

    They determine its images, unless `image_shape` does, and its pooling. Positions of registers
    are added to these.

    Args:
        tensors, options: those of the conversion.
        names: the `TokenNames` of the file.
        stride: pixels from token to token.
        channels: channels of the images.
        image_shape: (height, width, ...) of the file's images, where it has it.
        pooling: as for `prefix_map`.
    """
    _, num_positions, width = dims(tensors, names.positions, 3)
    tokens = prefix_map(tensors, names, width, options, pooling)
    first = [n for n in (names.class_token, names.distillation) if n in tensors]
    registers = tokens.arguments.get("registers", 0)
    counts = dict.fromkeys((len(first), 0, len(first) + registers))
    grid = file_grid(num_positions, tuple(counts), stride, options.image_shape, image_shape)
    shape = (1, num_positions, width)
    mapping = WeightMap({"image_shape": pixels(grid, channels)}) | tokens
    prefix = tokens.weights.get("embedding/prefix")
    if grid.prefix > len(first):
        both = Transform(prefix.tensors | {names.positions: shape}, add_positions)
        patches = Transform({names.positions: shape}, grid.spatial)
        weights = {"embedding/prefix": both, "embedding/positions": patches}
        return mapping | WeightMap({"class_position": False}, weights)
    # That of a class token which the file lacks, or keeps free of positions, is left out.
    positions = len(tokens.new) if prefix is None else min(len(first), grid.prefix)
    fit = partial(fit_positions, grid=grid, prefix=positions)
    arguments = {"class_position": bool(positions)} if prefix or tokens.new else {}
    weights = {"embedding/positions": Transform({names.positions: shape}, fit)}
    return mapping | WeightMap(arguments, weights)


def add_positions(*arrays):
    """Tokens of shape (1, token, channel) as one, with the first of the positions added."""
    *tokens, positions = arrays
    tokens = concat_tokens(*tokens)
    return tokens + positions[:, : tokens.shape[1]]


def prefix_map(tensors, names, width, options, pooling=None):
    """The `WeightMap` of the prefix tokens, which determine the pooling of a ViT.

    A class token is left out where the caller asks for the mean of the patches, and nothing else
    needs it. `pooling` is that of the file, where it does not follow from its tokens.
    """
    first = [n for n in (names.class_token, names.distillation) if n in tensors]
    sizes = dict.fromkeys(first, (1, 1, width))
    registers = 0
    if names.registers in tensors and tensors[names.registers].shape != (1, 0, width):
        registers = dims(tensors, names.registers, 3)[1]
        sizes[names.registers] = (1, registers, width)
    own = options.config.get("pooling") or pooling or ("cls" if first else "gap")
    pooling = options.pooling or own
    if pooling == "map" or (pooling == "gap" and names.distillation in tensors):
        raise ValueError(
            "Expected pooling to be 'cls', or 'gap' for a file without a token of distillation. "
            f"Received: pooling={pooling!r}, {', '.join(sizes)}"
        )
    # transformers writes an empty tensor where there are no registers.
    mapping = WeightMap({"pooling": pooling}, unused=() if registers else (str(names.registers),))
    if pooling == "gap" and own != "gap" and not registers:
        return mapping | WeightMap(unused=(names.class_token,))
    mapping |= WeightMap({"registers": registers})
    if not sizes:
        return mapping | WeightMap(new=("embedding/prefix",) if pooling == "cls" else ())
    if pooling == "cls" and not first:
        raise ValueError(
            "Expected pooling to be 'gap' for a file with registers and no class token. "
            f"Received: pooling='cls', {', '.join(sizes)}"
        )
    arguments = {"class_token": True} if pooling == "gap" and first else {}
    return mapping | WeightMap(arguments, {"embedding/prefix": Transform(sizes, concat_tokens)})


def concat_tokens(*tokens):
    """Arrays of shape (1, token, channel) as one."""
    return np.concatenate(tokens, axis=1)


def file_grid(num_positions, prefixes, stride, asked=None, own=None):
    """The `TokenGrid` of a file's positions, which determine the size of its images.

    It is that of the images that the file names, or else of those that are asked for if they have
    as many tokens; else it is square.

    Args:
        num_positions: number of positions in the file.
        prefixes: numbers of the file's prefix tokens that may have a position.
        stride: pixels from token to token.
        asked, own: (height, width, ...) of the images asked for, and of the file's, if any.
    """
    height, width = (own or asked or (0, 0))[:2]
    if height % stride == width % stride == 0:
        rows, columns = height // stride, width // stride
        for prefix in prefixes:
            if rows and columns and rows * columns == num_positions - prefix:
                return TokenGrid(rows, columns, prefix, stride)
    for prefix in prefixes if own is None else ():
        side = math.isqrt(max(num_positions - prefix, 0))
        if side and side**2 == num_positions - prefix:
            return TokenGrid(side, side, prefix, stride)
    raise ValueError(
        "Expected as many positions as a square grid of tokens has, or that of image_shape. "
        f"Received: {num_positions} positions, image_shape={own or asked}"
    )


def pixels(grid, channels):
    """The (height, width, channels) of the images that a grid covers."""
    return (grid.rows * grid.stride, grid.columns * grid.stride, channels)


def fit_positions(positions, grid, prefix):
    """A file's positions as (1, token, channel) of a model with `prefix` prefix tokens.

    A class token that the model does not have loses its position; one that the file adds after
    the positions gets zeros.
    """
    positions = positions.reshape(1, grid.num_tokens, -1)
    if prefix == grid.prefix:
        return positions
    if prefix < grid.prefix:
        return grid.spatial(positions)
    return np.concatenate([np.zeros_like(positions[:, :prefix]), positions], axis=1)


def clip_tokens_map(tensors, names, width, channels, patch, asked=None, own=None):
    """The class token, stored as (channel,), and positions (token, channel) of a CLIP.

    Args:
        tensors: those of the file.
        names: the `TokenNames`.
        width, channels, patch: channels of a token and of the images, and the side of a patch.
        asked, own: as for `file_grid`.
    """
    num_positions = dims(tensors, names.positions, 2)[0]
    grid = file_grid(num_positions, (1,), patch, asked, own)
    fit = partial(fit_positions, grid=grid, prefix=1)
    as_token = partial(np.reshape, shape=(1, 1, width))
    weights = {
        "embedding/prefix": Transform({names.class_token: (width,)}, as_token),
        "embedding/positions": Transform({names.positions: (num_positions, width)}, fit),
    }
    return WeightMap({"image_shape": pixels(grid, channels)}, weights)


def patch_positions_map(tensors, name, patch, channels, options):
    """The positions (1, token, channel) of a SigLIP, which determine its images.

    These are the configuration's, or else those asked for or of a known name if they have as many
    patches, with some pixels more beyond the last; else squares.
    """
    shape = dims(tensors, name, 3)
    side = math.isqrt(shape[1])
    size = (side * patch, side * patch) if side**2 == shape[1] else None
    known = options.resolution and (options.resolution,) * 2
    for image in filter(None, (options.config.get("image_shape"), options.image_shape, known)):
        if math.prod(n // patch for n in image[:2]) == shape[1]:
            size = tuple(image[:2])
            break
    if size is None:
        raise ValueError(
            "Expected as many positions as a square grid of tokens has, or that of image_shape. "
            f"Received: {shape[1]} positions, image_shape={options.image_shape}"
        )
    weights = {"embedding/positions": Transform({name: shape})}
    return WeightMap({"image_shape": (*size, channels)}, weights)


def relative_grid(entries, patch, own, asked, largest):
    """The `TokenGrid` of R rows and C columns whose table has (2 R - 1) (2 C - 1) + 3 entries.

    That of the file's own images, or else of those asked for where it fits, or else a square.
    """

    def count(rows, columns):
        return (2 * rows - 1) * (2 * columns - 1) + 3

    image_shape = own or asked
    rows, columns = (n // patch for n in (image_shape or (0, 0))[:2])
    if count(rows, columns) != entries and own is None:
        rows = columns = (math.isqrt(max(entries - 3, 0)) + 1) // 2
    if count(rows, columns) != entries or not 1 <= max(rows, columns) <= largest:
        raise ValueError(
            "Expected a table of relative positions of a square grid of at most "
            f"{largest} tokens a side, or that of image_shape. "
            f"Received: {entries} entries, image_shape={image_shape}"
        )
    return TokenGrid(rows, columns, 1, patch)
