"""What the tests of checkpoint files share."""

import pytest
from checkpoint_families import write

import vit_tf


@pytest.fixture
def load(tmp_path):
    """Loads tensors from a file, with what else it takes."""

    def load(tensors, **options):
        return vit_tf.load_pretrained(write(tensors, tmp_path), **options)

    return load
