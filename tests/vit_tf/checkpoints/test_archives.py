import tracemalloc

import numpy as np
import pytest
from archive_files import npy_bytes, npy_header, torch_or_skip, write_safetensors, write_zip

from vit_tf.checkpoints.archives import TensorInfo, open_archive

NUMPY_DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


def some_tensors(rng):
    """One tensor of each dtype, and the shapes that are easy to get wrong."""
    tensors = {
        f"Transformer/block_0/{dtype}": (rng.normal(size=(3, 5)) * 40).astype(dtype)
        for dtype in NUMPY_DTYPES
    }
    tensors["scalar"] = np.asarray(2.5, np.float32)
    tensors["empty"] = np.zeros((0, 4), np.float32)
    tensors["kernel"] = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    return tensors


def bfloat16_of(array):
    """The bits of float32s cut to bfloat16, as uint16."""
    return (array.view(np.uint32) >> 16).astype(np.uint16)


def assert_holds(path, kind, tensors):
    """The archive is that of these tensors, in this order; halves widened, the rest as they are."""
    with open_archive(path) as archive:
        assert archive.format == kind
        assert list(archive.tensors) == list(tensors)
        for name, array in tensors.items():
            assert archive.tensors[name] == TensorInfo(array.shape, array.dtype.name)
            read = archive.read(name)
            assert read.dtype == (np.float32 if array.dtype == np.float16 else array.dtype)
            assert read.dtype.isnative
            np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_comes_back(save, rng, tmp_path):
    tensors = some_tensors(rng)
    save(tmp_path / "a.npz", **tensors)
    assert_holds(tmp_path / "a.npz", "npz", tensors)


def test_npz_orders_and_bfloat16(rng, tmp_path):
    array = rng.normal(size=(3, 4, 5)).astype(np.float32)
    half = bfloat16_of(array)
    np.savez(
        tmp_path / "a.npz",
        fortran=np.asfortranarray(array),
        big=array.astype(">f4"),
        half=half.view("V2"),
        fortran_half=np.asfortranarray(half).view("V2"),
    )
    with open_archive(tmp_path / "a.npz") as archive:
        np.testing.assert_array_equal(archive.read("fortran"), array)
        np.testing.assert_array_equal(archive.read("big"), array)
        assert archive.tensors["half"] == TensorInfo((3, 4, 5), "bfloat16")
        for name in ("half", "fortran_half"):
            read = archive.read(name)
            assert read.dtype == np.float32
            np.testing.assert_array_equal(read.view(np.uint32), half.astype(np.uint32) << 16)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version, tmp_path):
    data = np.arange(6, dtype="<f4")
    write_zip(tmp_path / "a.npz", {"x.npy": npy_bytes(npy_header(), data.tobytes(), version)})
    with open_archive(tmp_path / "a.npz") as archive:
        np.testing.assert_array_equal(archive.read("x"), data.reshape(2, 3))


def test_safetensors_written_by_hand_comes_back(rng, tmp_path):
    tensors = some_tensors(rng)
    write_safetensors(tmp_path / "a.bin", tensors)
    assert_holds(tmp_path / "a.bin", "safetensors", tensors)


def test_safetensors_written_by_the_package_comes_back(rng, tmp_path):
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    tensors = some_tensors(rng)
    package.save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    with open_archive(tmp_path / "a.safetensors") as archive:
        order = list(archive.tensors)
    assert_holds(tmp_path / "a.safetensors", "safetensors", {name: tensors[name] for name in order})


def test_halves_widen_exactly(tmp_path):
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    tensors = {"brain": bits, "half": bits}
    write_safetensors(tmp_path / "a", tensors, {"brain": "BF16", "half": "F16"})
    with open_archive(tmp_path / "a") as archive:
        brain, half = archive.read("brain"), archive.read("half")
    np.testing.assert_array_equal(brain.view(np.uint32), bits.astype(np.uint32) << 16)
    np.testing.assert_array_equal(half, bits.view(np.float16).astype(np.float32))


def torch_tensors(rng):
    torch = torch_or_skip()
    tensors = {name: torch.from_numpy(array) for name, array in some_tensors(rng).items()}
    matrix = torch.arange(20.0).reshape(4, 5)
    return tensors | {
        "view": matrix[1:3],
        "transposed": torch.nn.Parameter(matrix.T),
        "brain": matrix.to(torch.bfloat16),
    }


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("container", [None, "state_dict", "model", "teacher"])
def test_pytorch_comes_back(legacy, container, rng, tmp_path):
    torch, tensors = torch_or_skip(), torch_tensors(rng)
    saved = tensors | {"count": 3}
    if container:
        student = {"student": {"other": torch.zeros(2)}, "optimizer": [{"lr": 0.1}, None]}
        saved = {"epoch": 7, "model_state": None, container: saved} | student
    torch.save(saved, tmp_path / "a.npz", _use_new_zipfile_serialization=not legacy)
    brain = tensors.pop("brain")
    with open_archive(tmp_path / "a.npz") as archive:
        assert archive.format == "pytorch"
        assert list(archive.tensors) == [*tensors, "brain"]
        assert archive.tensors["brain"] == TensorInfo((4, 5), "bfloat16")
        np.testing.assert_array_equal(archive.read("brain"), brain.float().numpy())
        arrays = {name: archive.read(name) for name in tensors}
    for name, tensor in tensors.items():
        array = tensor.detach().numpy()
        wide = np.float32 if array.dtype == np.float16 else array.dtype
        assert arrays[name].dtype == wide
        np.testing.assert_array_equal(arrays[name], array)


def test_one_tensor_is_in_memory_at_a_time(rng, tmp_path):
    tensors = {f"w{i}": np.ones((256, 1024), np.float32) for i in range(16)}
    np.savez(tmp_path / "stored", **tensors)
    np.savez_compressed(tmp_path / "deflated", **tensors)
    write_safetensors(tmp_path / "safe", tensors)
    for name in ("stored.npz", "deflated.npz", "safe"):
        tracemalloc.start()
        with open_archive(tmp_path / name) as archive:
            opened = tracemalloc.get_traced_memory()[1]
            for tensor in archive.tensors:
                archive.read(tensor)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert opened < 0.5e6
        assert peak < 2**20 * 2
