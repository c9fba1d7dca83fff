"""Mutants of checkpoint files and of the JSON beside them, and what must hold of each."""

import io
import json
import struct
import time
import tracemalloc
import zipfile
import zlib
from dataclasses import dataclass

import numpy as np
from archive_files import safetensors_bytes, torch_or_skip, write_zip
from checkpoint_families import arrays, write_torch

import vit_tf

ODD = (None, 0, -1, 1.5, 10**12, "a", [], {}, True, [1, 2, 3], float("nan"), "1e999", [[]])
LONGEST = 20  # seconds
SLOW = 30  # mutants in a slow test
# What building a tiny model and compiling its pieces takes in Python, in bytes.
BUILDING = 8e6


@dataclass
class Tally:
    """What became of the mutants, and whether their memory is traced, which takes its time."""

    read: int = 0
    refused: int = 0
    compared: int = 0
    traced: bool = True

    def __str__(self):
        return f"{self.read} read, {self.refused} refused, {self.compared} compared"


def is_traced(name, index, count):
    """Whether the memory of a mutant is traced: of a third of those of a slow test.

    Tracing takes about as long as the rest. A quick test has no time for it, and a long one traces
    all. The name of what is mutated says which third, so that together they cover all places.
    """
    return count > SLOW or (count == SLOW and (index + zlib.crc32(name.encode())) % 3 == 0)


def pieces(data, rng):
    """Cut short, lengthened, or with bits or bytes changed where the header lies, or anywhere."""
    kind, at = rng.integers(5), int(rng.integers(len(data)))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data + rng.bytes(9)
    near = at % min(len(data), 4000)
    if kind == 2:
        return data[:near] + bytes([data[near] ^ 1 << int(rng.integers(8))]) + data[near + 1 :]
    at = at if kind == 3 else near
    return data[:at] + rng.bytes(4) + data[at + 4 :]


def restructured(tensors, rng):
    """A copy in which one tensor has another name, shape, dtype or content, is gone or is new."""
    tensors = dict(tensors)
    name, other = (str(n) for n in rng.choice(list(tensors), 2, replace=False))
    array = tensors.pop(name)
    mutations = (
        {},
        {name: tensors[other]},
        {name: array.reshape(-1)},
        {name: array[None]},
        {name: np.ascontiguousarray(array.reshape(array.shape[::-1]))},
        {name: np.ascontiguousarray(array.T)},
        {name: array.astype(np.int64)},
        {name: array.astype(np.float64)},
        {name: array.astype(np.float16)},
        {name: np.zeros((0, *array.shape), np.float32)},
        {name: np.full_like(array, np.nan)},
        {name.replace("0", "7"): array},
        {name[: len(name) // 2]: array},
        {name: array, f"{name}.more": array},
    )
    return tensors | mutations[rng.integers(len(mutations))]


def misdeclared(data, rng):
    """A safetensors file whose well-formed header lies of one tensor."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    name = str(rng.choice([n for n in header if n != "__metadata__"]))
    info = header[name]
    first, last = info["data_offsets"]
    lies = (
        {"dtype": "F64"},
        {"dtype": "I32"},
        {"dtype": "F33"},
        {"shape": info["shape"][::-1]},
        {"shape": [*info["shape"], 10**9]},
        {"shape": [-1]},
        {"shape": "a"},
        {"data_offsets": [first, last + 4]},
        {"data_offsets": [last, first]},
        {"data_offsets": [first, 10**15]},
        {"data_offsets": [first + 4, last + 4]},
        {"data_offsets": None},
    )
    header[name] = info | lies[rng.integers(len(lies))]
    return safetensors_bytes(header, data[8 + length :])


def rezipped(data, rng):
    """A zip of which one member's bytes differ, and its checksum is that of the mutant."""
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        members = {name: zipped.read(name) for name in zipped.namelist()}
    ends = [name for name in members if name.endswith((".npy", ".pkl"))]
    hit = str(rng.choice(ends))
    part, at = members[hit], int(rng.integers(min(len(members[hit]), 1500)))
    members[hit] = part[:at] + bytes([part[at] ^ 1 << int(rng.integers(8))]) + part[at + 1 :]
    out = io.BytesIO()
    write_zip(out, members)
    return out.getvalue()


def mutate_file(path, tensors, save, rng):
    """Writes a mutant; whether every tensor that it holds is whole.

    Args:
        tensors: what the file holds.
        save: function of tensors and path that writes them.
    """
    kind = rng.integers(3)
    if kind == 0:
        save(restructured(tensors, rng), path)
        return True
    data = path.read_bytes()
    if kind == 1:
        lie = rezipped if data[:2] == b"PK" else misdeclared if data[8:9] == b"{" else pieces
        path.write_bytes(lie(data, rng))
    else:
        path.write_bytes(pieces(data, rng))
    return False


def mutate_json(path, rng, likely):
    """Changes or drops a field of a JSON file, or damages its text.

    Args:
        likely: dict from field to values that a sound file may have.

    Returns:
        Whether it is the text of an object still.
    """
    text = path.read_text()
    fields, kind = json.loads(text), rng.random()
    if kind < 0.2:
        path.write_bytes(pieces(text.encode(), rng))
        return False
    if kind < 0.25:
        path.write_text(("[" * 10**5, "[]", "3", "", '{"a": 1, "a": 2}')[rng.integers(5)])
        return False
    inner = [fields] + [value for value in fields.values() if isinstance(value, dict)]
    inner = [value for value in inner if value]
    chosen_fields = inner[rng.integers(len(inner))]
    sound = [name for name in chosen_fields if name in likely]
    if sound and kind < 0.6:
        name = str(rng.choice(sound))
        chosen_fields[name] = likely[name][rng.integers(len(likely[name]))]
    else:
        name = str(rng.choice(list(chosen_fields)))
        chosen_fields[name] = ODD[rng.integers(len(ODD))]
        if kind > 0.9:
            del chosen_fields[name]
    path.write_text(json.dumps(fields))
    return True


def values_of(tensors, intact):
    """All numbers of a file and of the model that it is of, also rounded to 16 bits; sorted."""
    every = [np.ravel(np.asarray(x, np.float32)) for x in (*tensors.values(), *intact.values())]
    values = np.unique(np.concatenate(every))
    return np.union1d(values, values.astype(np.float16).astype(np.float32))


def load(path, intact, values, size, valid, tally, **options):
    """Loads a mutant, into a model of which every weight is the file's, or in one error.

    Args:
        intact: dict from weight to array of the model that the file was of.
        values: those of `values_of`.
        size: bytes of the file.
        whole: whether the tensors that the mutant holds are undamaged.
        tally: the `Tally`.

    Returns:
        The model, or None.
    """
    start, peak = time.perf_counter(), 0
    if tally.traced:
        tracemalloc.start()
    try:
        model = vit_tf.load_pretrained(path, **options)
    except ValueError as error:
        words = str(error)
        assert words.startswith(("Cannot read", "The checkpoint has no", "Unknown")) or (
            "Expected" in words and "Received" in words
        )
        assert len(str(error)) < 3000
        tally.refused += 1
        return None
    finally:
        if tally.traced:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert time.perf_counter() - start < LONGEST
        assert peak < 1.2 * size + BUILDING, peak
    tally.read += 1
    check_filled(arrays(model), intact, values, valid)
    return model


def check_filled(weights, intact, values, valid):
    """Every weight holds what the file does: nothing is left as it was drawn.

    A value is one of those of the intact file; where some bytes were damaged, all but those.
    """
    changed = 0
    for name, weight in weights.items():
        if name in intact and np.array_equal(weight, intact[name]):
            continue  # all of whose values are among `values`
        assert np.isfinite(weight).all(), name
        matching = np.isin(weight, values)
        assert matching.all() if valid else matching.mean() > 0.8 or matching.size < 50, name
        changed += 1
    # A tensor, or two that were exchanged, of which at most six weights are made.
    assert changed <= 12, changed


def save_torch(tensors, path):
    """Writes a PyTorch file."""
    write_torch(tensors, path)


def save_legacy(tensors, path):
    """Writes a PyTorch file as before torch 1.6."""
    torch = torch_or_skip()
    state = {name: torch.from_numpy(np.asarray(array)) for name, array in tensors.items()}
    torch.save(state, path, _use_new_zipfile_serialization=False)


def save_deflated(tensors, path):
    """Writes a compressed `.npz`."""
    with open(path, "wb") as file:
        np.savez_compressed(file, **tensors)


def save_npz(tensors, path):
    """Writes an `.npz`."""
    with open(path, "wb") as file:
        np.savez(file, **tensors)
