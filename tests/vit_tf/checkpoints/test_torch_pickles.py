"""Hostile pickles, written opcode by opcode, in files of PyTorch."""

import struct

import numpy as np
import pytest
from archive_files import raises, torch_or_skip, write_zip

from vit_tf.checkpoints import torch_pickles
from vit_tf.checkpoints.archives import open_archive

REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
PARAMETER = b"ctorch._utils\n_rebuild_parameter\n"
ORDERED_DICT = b"ccollections\nOrderedDict\n"
NAMESPACE = b"cargparse\nNamespace\n"
FLOATS = b"ctorch\nFloatStorage\n"
STATE = b"}X\x05\x00\x00\x00checkcargparse\nNamespace\ns"
# The state of objects without and with slots: {"check": Ignored}, and (None, {"check": Ignored}).
STATES = {"attributes": STATE + b"b", "slots": b"N" + STATE + b"\x86b"}


def text(string):
    return b"X" + struct.pack("<I", len(string)) + string.encode()


def storage(key=b"U\x010", kind=b"U\x07storage", count=b"K\x01"):
    return b"(" + kind + FLOATS + key + text("cpu") + count + b"tQ"


def tensor(data=None, offset=b"K\x00", shape=b"K\x01\x85", stride=b"K\x01\x85"):
    data = storage() if data is None else data
    return REBUILD + b"(" + data + offset + shape + stride + b"\x89}tR"


def write(path, pickled):
    members = {"a/data.pkl": pickled, "a/data/0": struct.pack("<f", 3), "a/version": b"3\n"}
    write_zip(path, members)
    return path


def state_dict(value, before=b""):
    """A pickle of {"x": value}, after one that pushes and pops another object."""
    dropped = before + b"0" if before else b""
    return b"\x80\x02" + dropped + b"}" + text("x") + value + b"s."


def test_a_plain_pickle_opens(tmp_path):
    parameter = PARAMETER + b"(" + tensor() + b"\x88}tR"
    for value in (tensor(), parameter):
        with open_archive(write(tmp_path / "a.pt", state_dict(value))) as archive:
            np.testing.assert_array_equal(archive.read("x"), np.float32([3]))


TARGETS = {
    "tensor": tensor(),
    "parameter": PARAMETER + b"(" + tensor() + b"\x88}tR",
    "storage": storage(),
    "storage type": FLOATS,
    "tensor constructor": REBUILD,
    "parameter constructor": PARAMETER,
    "class of dicts": ORDERED_DICT,
    "class of ignored objects": NAMESPACE,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("target", TARGETS)
def test_pickles_that_set_attributes_are_refused(target, state, tmp_path):
    path = write(tmp_path / "a.pt", state_dict(tensor(), TARGETS[target] + STATES[state]))
    with raises("pickled part cannot be read"):
        open_archive(path)
    for kind in (torch_pickles.Tensor, torch_pickles.Ignored, torch_pickles.StateDict):
        assert not hasattr(kind, "check")


def test_a_tensor_cannot_be_enlarged(tmp_path):
    enlarged = b"}(" + text("shape") + b"M\xe8\x03\x85" + text("stride") + b"K\x01\x85ub"
    with raises("pickled part cannot be read"):
        open_archive(write(tmp_path / "a.pt", state_dict(tensor() + enlarged)))


# Each leads to numbers beyond the one that the storage holds.
BEYOND = {
    "offset": tensor(offset=b"K\x01"),
    "negative offset": tensor(offset=b"J\xff\xff\xff\xff"),
    "shape": tensor(shape=b"K\x02\x85"),
    "stride": tensor(shape=b"K\x02\x85", stride=b"M\xe8\x03\x85"),
    "negative stride": tensor(shape=b"K\x02\x85", stride=b"J\xff\xff\xff\xff\x85"),
    "other strides": tensor(stride=b")"),
}


@pytest.mark.parametrize("case", BEYOND)
def test_no_tensor_reads_beyond_its_storage(case, tmp_path):
    with open_archive(write(tmp_path / "a.pt", state_dict(BEYOND[case]))) as archive, raises():
        archive.read("x")


def test_a_tensor_cannot_be_made_without_its_arguments(tmp_path):
    with raises("NEWOBJ"):
        open_archive(write(tmp_path / "a.pt", state_dict(REBUILD + b")\x81")))


def test_attributes_of_dicts_and_other_objects_are_ignored(tmp_path):
    dict_with_state = ORDERED_DICT + b")R" + text("x") + tensor() + b"s"
    dict_with_state += b"}" + text("items") + NAMESPACE + b"sb"
    namespace = NAMESPACE + b")\x81}" + text("lr") + b"K\x03sb0"
    pickled = b"\x80\x02" + namespace + dict_with_state + b"."
    with open_archive(write(tmp_path / "a.pt", pickled)) as archive:
        np.testing.assert_array_equal(archive.read("x"), np.float32([3]))


@pytest.mark.parametrize("legacy", [False, True])
def test_the_state_dict_of_a_module_opens(legacy, tmp_path):
    torch = torch_or_skip()
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    saved = module.state_dict()
    assert saved._metadata
    torch.save(saved, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    with open_archive(tmp_path / "a.pt") as archive:
        assert list(archive.tensors) == list(saved)
        for name, value in saved.items():
            np.testing.assert_array_equal(archive.read(name), value.numpy())
