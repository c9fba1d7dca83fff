import pytest

from vit_tf.names import choose, match, match_sites

NAMES = ["embedding", "block00/mlp/sum", "block01/mlp/sum", "logits"]


def test_match_keeps_depth_order_and_lists_near_matches():
    assert match(["logits", "block*/mlp/sum"], NAMES) == tuple(NAMES[1:])
    with pytest.raises(ValueError, match=r"near matches: block01/mlp/sum.*'block01/mlp/sun'"):
        match(["block01/mlp/sun"], NAMES)


def test_a_block_names_all_its_sites():
    sites = ["block00/attention", "block00/mlp", "block01/attention", "block01/mlp"]
    assert match_sites(["block00", "block01/mlp"], sites) == {
        "block00/attention",
        "block00/mlp",
        "block01/mlp",
    }
    with pytest.raises(ValueError, match=r"without_skips.*block01.*Received: 'block02'"):
        match_sites(["block02"], sites)


def test_choose_names_what_it_chose_from():
    assert choose("variant", "B/16", {"B/16": 1}) == 1
    with pytest.raises(ValueError, match=r"Expected variant .*B/16.*Received: 'B/15'"):
        choose("variant", "B/15", {"B/16": 1})
