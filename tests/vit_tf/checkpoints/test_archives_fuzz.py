"""Every mutant of a checkpoint reads correctly or ends in one `ValueError`, soon and small."""

import re
import resource
import time
import tracemalloc

import numpy as np
import pytest
from archive_files import torch_or_skip, write_safetensors
from mutants import pieces, rezipped, told_otherwise

from vit_tf.checkpoints.archives import open_archive

MUTANTS = 240


def fuzz_tensors(rng):
    return {f"block{i}.weight{i}": rng.normal(size=(3, 5)).astype(np.float32) for i in range(3)} | {
        "count": np.arange(4)
    }


def write_fuzzed(kind, path, rng):
    tensors = fuzz_tensors(rng)
    if kind == "stored npz":
        np.savez(path, **tensors)
        path = path.with_suffix(".npz")
    elif kind == "deflated npz":
        np.savez_compressed(path, **tensors)
        path = path.with_suffix(".npz")
    elif kind == "safetensors":
        write_safetensors(path, tensors)
    else:
        torch = torch_or_skip()
        saved = {"state_dict": {name: torch.from_numpy(x) for name, x in tensors.items()}}
        torch.save(saved, path, _use_new_zipfile_serialization=kind == "pytorch")
    return tensors, path.read_bytes()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "kind", ["stored npz", "deflated npz", "safetensors", "pytorch", "legacy pytorch"]
)
def test_mutants_read_correctly_or_end_in_a_value_error(kind, rng, tmp_path):
    tensors, data = write_fuzzed(kind, tmp_path / "seed", rng)
    values = {array.tobytes() for array in tensors.values()}
    path, refused, zipped = tmp_path / "mutant", 0, data[:2] == b"PK"
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(MUTANTS):
        lie = number % 3 == 0 and kind != "legacy pytorch"
        mutant = (rezipped if zipped else told_otherwise)(data, rng) if lie else pieces(data, rng)
        path.write_bytes(mutant)
        start = time.perf_counter()
        tracemalloc.start()
        try:
            with open_archive(path) as archive:
                read = {name: archive.read(name) for name in archive.tensors}
        except ValueError as error:
            refused += 1
            assert re.match(r"(?s)Expected .*Received: ", str(error))
            assert len(str(error)) < 1000
        else:
            # A zip has a checksum of what was not zipped anew.
            check_values(read, values if zipped and not lie else None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8e6
        assert time.perf_counter() - start < 5
    assert refused > MUTANTS / 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 100_000


def check_values(read, values):
    """Whatever still reads is small, and of the bytes written, in either byte order."""
    assert read
    for array in read.values():
        assert array.nbytes <= 4096
        assert values is None or {array.tobytes(), array.byteswap().tobytes()} & values
