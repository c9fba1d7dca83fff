"""The layout of a token sequence: prefix tokens, then a grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TokenGrid:
    """Layout of a token sequence: first the prefix tokens, then `rows x columns` spatial tokens.

    Prefix tokens have no position in the image. Spatial tokens are ordered row by row, and each
    covers `stride x stride` pixels of the image. The methods only slice, so they work on NumPy
    arrays and on tensors of any backend.

    Args:
        rows: number of token rows.
        columns: number of token columns.
        prefix: number of prefix tokens, which is 1 if there is only a CLS token.
        stride: distance between neighbouring tokens, in pixels.
    """

    rows: int
    columns: int
    prefix: int
    stride: int

    def __post_init__(self) -> None:
        if min(self.rows, self.columns, self.stride) < 1 or self.prefix < 0:
            raise ValueError(
                "Expected rows, columns and stride to be at least 1 and prefix at least 0. "
                f"Received: {self}"
            )

    @classmethod
    def of_patches(
        cls, image_shape: Sequence[int], patch_size: int, prefix: int = 0, stem_stride: int = 1
    ) -> "TokenGrid":
        """The grid of an image, or of a stem's map of it, cut into square patches.

        Raises:
            ValueError: if the height or the width is not a multiple of `patch_size` times
                `stem_stride`.
        """
        height, width = image_shape[:2]
        stride = patch_size * stem_stride
        if height % stride or width % stride:
            times, stem = "", ""
            if stem_stride > 1:
                times, stem = " times the stem's stride", f", a stem of stride {stem_stride}"
            raise ValueError(
                f"Expected the image's height and width to be multiples of patch_size{times}. "
                f"Received: image_shape={tuple(image_shape)}, patch_size={patch_size}{stem}"
            )
        return cls(height // stride, width // stride, prefix, stride)

    @property
    def num_spatial(self) -> int:
        """Number of spatial tokens."""
        return self.rows * self.columns

    @property
    def num_tokens(self) -> int:
        """Number of all tokens: prefix tokens and spatial tokens."""
        return self.prefix + self.num_spatial

    @property
    def center(self) -> int:
        """Position in the sequence of the token at `(rows // 2, columns // 2)`."""
        return self.prefix + (self.rows // 2) * self.columns + self.columns // 2

    def spatial(self, tokens: Any) -> Any:
        """The spatial tokens among `tokens`, an array of shape (example, token, ...)."""
        return tokens[:, self.prefix :]

    def first(self, tokens: Any) -> Any:
        """The first of `tokens`, an array of shape (example, token, ...): CLS, if there is one."""
        return tokens[:, 0]

    def as_map(self, values: np.ndarray) -> np.ndarray:
        """Reshapes `values` of shape (..., num_spatial) to (..., rows, columns)."""
        return np.reshape(values, (*np.shape(values)[:-1], self.rows, self.columns))

    def positions(self) -> np.ndarray:
        """Centres of the spatial tokens: float64 array of shape (num_spatial, 2), in pixels.

        The first column is the vertical coordinate (down), the second the horizontal one.
        """
        row, column = np.indices((self.rows, self.columns)).reshape(2, -1)
        return (np.stack([row, column], axis=-1) + 0.5) * self.stride

    def distances(self) -> np.ndarray:
        """Euclidean distances between spatial tokens: (num_spatial, num_spatial), in pixels."""
        positions = self.positions()
        return np.linalg.norm(positions[:, None] - positions[None, :], axis=-1)


def prefix_names(prefix: int) -> tuple[str, ...]:
    """Default names of `prefix` prefix tokens: CLS, register 1, ..."""
    return tuple("CLS" if not i else f"register {i}" for i in range(prefix))


def as_grid(
    grid: TokenGrid | tuple[int, int],
    num_tokens: int | None = None,
    image_shape: tuple | None = None,
) -> TokenGrid:
    """`grid`, a `TokenGrid` or a pair (rows, columns), as a `TokenGrid`.

    A pair's tokens beyond `num_tokens` are the prefix; its stride is that of the square patches
    that tile the images, or 1 without an `image_shape`. A ValueError for what fits neither.
    """
    if isinstance(grid, TokenGrid):
        return grid
    rows, columns = as_pair(grid)
    places = rows * columns
    prefix = 0 if num_tokens is None else num_tokens - places
    # A sequence with more prefix tokens than spatial ones has another grid.
    if not 0 <= prefix < places:
        raise ValueError(
            f"Expected a grid (rows, columns) of the {num_tokens} tokens except for a few "
            f"prefix tokens, or a TokenGrid. Received: grid={grid}"
        )
    height, width = (rows, columns) if image_shape is None else image_shape[:2]
    if height is None or (height // rows * rows, height // rows * columns) != (height, width):
        raise ValueError(
            "Expected a grid (rows, columns) of square patches that tile the images, or a "
            f"TokenGrid. Received: grid={grid} for images of {height} x {width} pixels"
        )
    return TokenGrid(rows, columns, prefix, height // rows)


def as_pair(grid: Any) -> tuple[int, int]:
    """A pair (rows, columns) as a tuple of two integers; a ValueError for anything else."""
    pair = tuple(grid) if isinstance(grid, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(n, int | np.integer) and n > 0 for n in pair):
        raise ValueError(
            "Expected grid to be a vit_tf.TokenGrid or a pair of integers (rows, columns). "
            f"Received: grid={grid!r}"
        )
    return int(pair[0]), int(pair[1])
