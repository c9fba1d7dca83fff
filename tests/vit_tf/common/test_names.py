import os

import numpy as np
import pytest

from vit_tf.common.names import file_error, format_list, lookup, match, match_sites, near_names
from vit_tf.data import read_class_list

NAMES = ["embedding", "block00/mlp/sum", "block01/mlp/sum", "logits"]


def test_match_keeps_depth_order_and_lists_near_matches():
    assert match(["logits", "block*/mlp/sum"], NAMES) == tuple(NAMES[1:])
    with pytest.raises(ValueError, match=r"'block01/mlp/sun'. Did you mean block01/mlp/sum"):
        match(["block01/mlp/sun"], NAMES)


def test_a_block_names_all_its_sites():
    sites = ["block00/attention", "block00/mlp", "block01/attention", "block01/mlp"]
    assert match_sites(["block00", "block01/mlp"], sites) == {
        "block00/attention",
        "block00/mlp",
        "block01/mlp",
    }
    with pytest.raises(ValueError, match=r"without_skips: 'block02'.*block01"):
        match_sites(["block02"], sites)


def test_lookup_lists_the_names():
    assert lookup("variant", "B/16", {"B/16": 1}) == 1
    with pytest.raises(ValueError, match=r"Unknown variant: 'B/15'.*B/16"):
        lookup("variant", "B/15", {"B/16": 1})


def test_near_names_are_near():
    variants = ["Ti/16", "S/16", "S/32", "B/8", "B/16", "L/16"]
    assert near_names("B/17", variants) == near_names("b16", variants) == ["B/16"]
    assert near_names("multi", ["mirrored", "multiworker"]) == ["multiworker"]
    assert near_names("dgo", ["animal", "cat", "dog"]) == ["dog"]
    assert near_names("mirored", ["mirrored", "multiworker"]) == ["mirrored"]
    assert near_names("gpu", ["tpu", "mirrored"]) == near_names("", variants) == []
    blocks = [f"block{i:02d}/mlp/sum" for i in range(9)]
    assert near_names("block03/mlp/sun", blocks)[0] == "block03/mlp/sum"
    assert near_names("block03/mlp", blocks) == ["block03/mlp/sum"]
    assert len(near_names("block99/mlp/sum", blocks)) == 5


def test_ten_names_are_listed_and_the_others_counted():
    assert format_list(["a", 2]) == "a, 2" and format_list(()) == ""
    assert format_list("abcdefghij") == "a, b, c, d, e, f, g, h, i, j"
    assert format_list("abcdefghijkl") == "a, b, c, d, e, f, g, h, i, j and 2 more"
    assert format_list("abcdefghijk", "; ").endswith("; j; and 1 more")
    with pytest.raises(ValueError, match=r"Expected one of: n0, .*, n9 and 20 more"):
        lookup("name", "zzz", dict.fromkeys(f"n{number}" for number in range(30)))


def test_errors_of_files_leave_out_the_path(tmp_path):
    for path in (tmp_path / "it's gone", str(tmp_path / "gone"), np.str_(tmp_path / "gone")):
        with pytest.raises(FileNotFoundError) as missing:
            os.stat(path)
        assert file_error(missing.value, path) == "No such file or directory"
        words = f"cannot identify {path!r}, a file"
        assert file_error(ValueError(words), path) == "cannot identify, a file"
    with pytest.raises(ValueError, match=r"list of classes '.*/gone': No such file"):
        read_class_list(tmp_path / "gone")
