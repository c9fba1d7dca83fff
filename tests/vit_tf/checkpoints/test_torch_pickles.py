"""Hostile pickles, written opcode by opcode, in files of PyTorch."""

import struct

import numpy as np
import pytest
from archive_files import memory_below, raises, torch_or_skip, write_zip

from vit_tf.checkpoints import torch_pickles
from vit_tf.checkpoints.archives import open_archive

REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
PARAMETER = b"ctorch._utils\n_rebuild_parameter\n"
ORDERED_DICT = b"ccollections\nOrderedDict\n"
NAMESPACE = b"cargparse\nNamespace\n"
FLOATS = b"ctorch\nFloatStorage\n"
ONE = b"\x85"  # TUPLE1 of the top of the stack.
STATE = b"}X\x05\x00\x00\x00checkcargparse\nNamespace\ns"
# The state of objects without and with slots: {"check": Ignored}, and (None, {"check": Ignored}).
STATES = {"attributes": STATE + b"b", "slots": b"N" + STATE + b"\x86b"}
# A tuple of tuples of 2 ** 22 strings, in 60 bytes.
NESTED = b"U\x01a" + b"2\x86" * 22


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
    check = torch_pickles.Tensor.check
    path = write(tmp_path / "a.pt", state_dict(tensor(), TARGETS[target] + STATES[state]))
    try:
        with raises("a pickle that sets attributes"):
            open_archive(path)
        assert torch_pickles.Tensor.check is check
    finally:
        if torch_pickles.Tensor.check is not check:
            torch_pickles.Tensor.check = check


def test_a_tensor_cannot_be_enlarged_after_its_check(tmp_path):
    enlarged = b"}(" + text("check") + NAMESPACE
    enlarged += text("shape") + b"M\xe8\x03\x85" + text("stride") + b"K\x01\x85ub"
    with raises("a pickle that sets attributes"):
        open_archive(write(tmp_path / "a.pt", state_dict(tensor() + enlarged)))


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


# What is nested, and a word of the error.
NESTED_TUPLES = {
    "key": (tensor(storage(key=NESTED)), "key is a tuple"),
    "kind": (tensor(storage(kind=NESTED)), "not a plain tensor storage"),
    "count": (tensor(storage(count=NESTED)), "<tuple> numbers"),
    "reference": (tensor(NESTED + b"Q"), "reference by a tuple"),
    "offset": (tensor(offset=NESTED), "offset, shape or strides"),
    "axis": (tensor(shape=NESTED + ONE), "offset, shape or strides"),
    "shape": (tensor(shape=NESTED, stride=NESTED), "offset, shape or strides"),
    "stride": (tensor(stride=NESTED + ONE), "offset, shape or strides"),
    "name": (b"K\x00s" + NESTED + tensor(), "named <tuple>"),
}


def assert_refused_in_little_memory(path, word):
    with memory_below(2**20), raises(word):
        open_archive(path)


@pytest.mark.parametrize("case", NESTED_TUPLES)
def test_nested_tuples_take_little_memory(case, tmp_path):
    value, word = NESTED_TUPLES[case]
    assert_refused_in_little_memory(write(tmp_path / "a.pt", state_dict(value)), word)


def test_nested_keys_of_legacy_files_take_little_memory(tmp_path):
    system = b"\x80\x02}" + text("little_endian") + b"\x88s."
    pickles = [
        b"\x80\x02" + torch_pickles.LEGACY.removesuffix(b".") + b".",
        b"\x80\x02M\xe9\x03.",
        system,
        state_dict(tensor()),
    ]
    keys = b"\x80\x02]" + NESTED + b"a."
    (tmp_path / "a.pt").write_bytes(b"".join(pickles) + keys + struct.pack("<Qf", 1, 3))
    assert_refused_in_little_memory(tmp_path / "a.pt", "key is a tuple")


@pytest.mark.parametrize("axes", [65, 10_000])
def test_tensors_of_more_axes_than_pytorch_has_are_refused(axes, tmp_path):
    many = b"(" + b"K\x01" * axes + b"t"
    with raises("not made of a storage"):
        open_archive(write(tmp_path / "a.pt", state_dict(tensor(shape=many, stride=many))))
