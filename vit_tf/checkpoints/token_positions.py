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
    """Names of a file's tensors, of which all but the positions may be missing in the file."""

    positions: str | None  # None for a family without them
    class_token: str
    distillation: str | None = None
    registers: str | None = None


def infer_num_heads(
    width: int, layers: int, options, other: int | None = None, known: dict = HEADS
) -> int:
    """The number of heads asked for, or of a published size, unless `other` may be it as well."""
    num_heads = options.num_heads or options.config.get("num_heads")
    if num_heads is not None:
        return num_heads
    heads = known.get((width, layers))
    if heads is None or other is not None:
        either = f" ({heads} or {other})" if heads else ""
        raise ValueError(
            f"Expected num_heads{either}, which cannot be inferred from the tensors or from "
            f"{layers} layers of {width} channels. Received: num_heads=None"
        )
    return heads


def embedding_map(
    tensors: dict,
    names: TokenNames,
    stride: int,
    channels: int,
    options,
    image_shape=None,
    pooling=None,
) -> WeightMap:
    """The `WeightMap` of a ViT's positions and prefix tokens.

    They determine its images, unless `image_shape` does, and its pooling. Positions of registers
    are added to these.
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


def prefix_map(
    tensors: dict, names: TokenNames, width: int, options, pooling: str | None = None
) -> WeightMap:
    """The `WeightMap` of the prefix tokens, which determine the pooling unless it is given."""
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
            "Expected pooling to be 'cls', or 'gap' for a file without a distillation token. "
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


def file_grid(
    num_positions: int,
    prefixes: tuple,
    stride: int,
    asked: tuple | None = None,
    own: tuple | None = None,
) -> TokenGrid:
    """The grid of positions: of the file's `own` images, else the `asked` ones, else a square."""
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
        "Expected the number of positions of a square token grid, or of the grid of image_shape. "
        f"Received: {num_positions} positions, image_shape={own or asked}"
    )


def pixels(grid, channels):
    """The (height, width, channels) of the images that a grid covers."""
    return (grid.rows * grid.stride, grid.columns * grid.stride, channels)


def fit_positions(positions: np.ndarray, grid: TokenGrid, prefix: int) -> np.ndarray:
    """A file's positions as (1, token, channel), cut to, or filled with zeros for, a prefix."""
    positions = positions.reshape(1, grid.num_tokens, -1)
    if prefix == grid.prefix:
        return positions
    if prefix < grid.prefix:
        return grid.spatial(positions)
    return np.concatenate([np.zeros_like(positions[:, :prefix]), positions], axis=1)


def clip_tokens_map(
    tensors: dict,
    names: TokenNames,
    width: int,
    channels: int,
    patch: int,
    asked: tuple | None = None,
    own: tuple | None = None,
) -> WeightMap:
    """The class token, stored as (channel,), and positions (token, channel) of a CLIP."""
    num_positions = dims(tensors, names.positions, 2)[0]
    grid = file_grid(num_positions, (1,), patch, asked, own)
    fit = partial(fit_positions, grid=grid, prefix=1)
    as_token = partial(np.reshape, shape=(1, 1, width))
    weights = {
        "embedding/prefix": Transform({names.class_token: (width,)}, as_token),
        "embedding/positions": Transform({names.positions: (num_positions, width)}, fit),
    }
    return WeightMap({"image_shape": pixels(grid, channels)}, weights)


def patch_positions_map(tensors: dict, name: str, patch: int, channels: int, options) -> WeightMap:
    """The positions (1, token, channel) of a SigLIP, which determine its images."""
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
            "Expected the number of positions of a square token grid, or of the grid of "
            "image_shape. "
            f"Received: {shape[1]} positions, image_shape={options.image_shape}"
        )
    weights = {"embedding/positions": Transform({name: shape})}
    return WeightMap({"image_shape": (*size, channels)}, weights)


def relative_grid(
    entries: int, patch: int, own: tuple | None, asked: tuple | None, largest: int
) -> TokenGrid:
    """The grid of R x C tokens whose table has (2 R - 1) (2 C - 1) + 3 entries, else a square."""

    def count(rows, columns):
        return (2 * rows - 1) * (2 * columns - 1) + 3

    image_shape = own or asked
    rows, columns = (n // patch for n in (image_shape or (0, 0))[:2])
    if count(rows, columns) != entries and own is None:
        rows = columns = (math.isqrt(max(entries - 3, 0)) + 1) // 2
    if count(rows, columns) != entries or not 1 <= max(rows, columns) <= largest:
        raise ValueError(
            f"Expected a table of relative positions for a square grid of at most {largest} "
            f"tokens per side, or for the grid of image_shape. "
            f"Received: {entries} entries, image_shape={image_shape}"
        )
    return TokenGrid(rows, columns, 1, patch)
