"""Every mutant of a checkpoint reads correctly or ends in one `ValueError`, soon and small."""

import io
import re
import resource
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
from archive_files import (
    torch_or_skip,
    write_safetensors,
    write_zip,
)

from vit_tf.checkpoints.archives import open_archive

MUTANTS = 240


def flipped(data, rng, within):
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(*within)] ^= 1 << rng.integers(8)
    return bytes(data)


def spliced(data, rng):
    """Cut short, lengthened, or with a stretch of noise."""
    at = int(rng.integers(len(data)))
    noise = rng.bytes(int(rng.integers(1, 40)))
    return [data[:at], data + noise, data[:at] + noise + data[at + len(noise) :], noise + data][
        rng.integers(4)
    ]


def substituted(data, rng):
    """Names, dtypes and shapes exchanged for others, of the same length where lengths matter."""
    swaps = [
        (b"<f4", b"<i4"),
        (b"<f4", b"<f8"),
        (b"<f4", b"|O8"),
        (b"(3, 5)", b"(5, 3)"),
        (b"(3, 5)", b"(9, 9)"),
        (b"(3, 5)", b"(3,55)"),
        (b"weight", b"height"),
        (b"weight", b"biases"),
        (b'"F32"', b'"F64"'),
        (b'"F32"', b'"I32"'),
        (b"[3, 5]", b"[5, 3]"),
        (b"[3, 5]", b"[35,]"),
        (b"[0, 60]", b"[0,600]"),
        (b"FloatStorage", b"DoubleStorag"),
        (b"FloatStorage", b"ShortStorage"),
        (b"_rebuild_tensor_v2", b"_rebuild_parameter"),
        (b"K\x03K\x05\x86", b"K\x05K\x03\x86"),
        (b"K\x03K\x05\x86", b"K\xffK\xff\x86"),
        (b"K\x0f", b"K\xff"),
    ]
    swaps = [swap for swap in swaps if swap[0] in data]
    if not swaps:
        return data[: rng.integers(len(data))]
    old, new = swaps[rng.integers(len(swaps))]
    return data.replace(old, new, int(rng.integers(1, 3)))


def rezipped(data, rng, header=None):
    """A zip with the header of one member mutated, and the checksum of the mutant."""
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        members = {name: zipped.read(name) for name in zipped.namelist()}
    hit = rng.choice([name for name in members if name.endswith((".npy", ".pkl"))])
    part = members[hit]
    if header:
        members[hit] = flipped(part, rng, (0, min(len(part), header)))
    else:
        members[hit] = substituted(part, rng)
    if rng.random() < 0.2:
        members[f"{hit}.npy"] = members.pop(hit)
    out = io.BytesIO()
    write_zip(out, members, zipfile.ZIP_DEFLATED if rng.random() < 0.2 else zipfile.ZIP_STORED)
    return out.getvalue()


def mutants(kind, data, rng):
    """Yields mutants of a file, and whether what still reads of each must be the values written.

    It need not where the data are hit and the format has no checksum, or where the mutant
    declares another view of them.
    """
    zipped = data[:2] == b"PK"
    header = data.index(b"}}") if kind == "safetensors" else len(data)
    for i in range(MUTANTS):
        if zipped and i % 6 == 0:
            # The central directory, with all sizes and offsets.
            yield flipped(data, rng, (data.index(b"PK\1\2"), len(data))), True
        elif zipped and i % 6 == 1:
            yield rezipped(data, rng), True
        elif zipped and i % 6 == 2:
            yield rezipped(data, rng, 128 if "npz" in kind else 2000), "npz" in kind
        elif i % 6 == 3:
            yield spliced(data, rng), zipped
        elif i % 6 == 4:
            yield substituted(data, rng), True
        else:
            yield flipped(data, rng, (0, header)), kind != "legacy pytorch"


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
    path, refused, count = tmp_path / "mutant", 0, 0
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for mutant, same in mutants(kind, data, rng):
        path.write_bytes(mutant)
        count += 1
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
            check_values(read, values if same else None)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8e6
        assert time.perf_counter() - start < 5
    assert count == MUTANTS
    assert refused > MUTANTS / 3
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 100_000


def check_values(read, values):
    """Whatever still reads is small, and of the bytes written, in either byte order."""
    assert read
    for array in read.values():
        assert array.nbytes <= 4096
        assert values is None or {array.tobytes(), array.byteswap().tobytes()} & values
