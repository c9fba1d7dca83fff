"""The images that the measurements of a study read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

# What a figure may need besides labelled test images, in words.
OPTIONAL = {
    "gallery": "training images to look for neighbours among",
    "objects": "images with masks of objects",
    "parts": "images with masks of parts of objects",
    "videos": "videos with masks of objects",
    "pairs": "pairs of images with keypoints",
    "landmarks": "queries and images to retrieve from",
}


@dataclass(frozen=True)
class Data:
    """What the measurements read: batched `tf.data.Dataset`s of (images, labels), and others.

    Attributes:
        test: images that everything is measured on.
        few: some of the test images, for what costs a gradient each.
        train: images that probes are fitted on; None for images without labels, as the next.
        validation: images that choose the strength of their penalty.
        num_classes: number of classes; None where there are no labels.
        facts: JSON facts that tell these images from others, besides those in the models' keys.
        optional: dict from a key of `OPTIONAL` to a function that makes it when it is first read:
            `gallery`, training images, more than `train`, that neighbours are looked for among;
            `objects` and `parts`, batches of (images, masks, labels), as for `object_clustering`;
            `videos`, a list of (frames, masks), as for `label_propagation`; `pairs`, as for
            `keypoint_correspondence`; `landmarks`, (queries, database, truth), as for `retrieval`.
        optional_facts: dict from the name of each of these to JSON facts that tell it from others.
    """

    test: Any
    few: Any
    train: Any = None
    validation: Any = None
    num_classes: int | None = None
    facts: dict = field(default_factory=dict)
    optional: dict[str, Callable] = field(default_factory=dict)
    optional_facts: dict = field(default_factory=dict)

    @cached_property
    def _made(self):
        return {}

    def has(self, name):
        """Whether there is what a measurement reads."""
        return name in self.optional or getattr(self, name, None) is not None

    def read(self, name):
        """What a measurement reads, made when it is first asked for."""
        if name not in self.optional:
            return getattr(self, name)
        if name not in self._made:
            self._made[name] = self.optional[name]()
        return self._made[name]

    def lacks(self, names):
        """A sentence on what of `names` there is not; empty if all is there."""
        missing = [OPTIONAL.get(name, "labelled images") for name in names if not self.has(name)]
        return f"It needs {' and '.join(dict.fromkeys(missing))}." if missing else ""
