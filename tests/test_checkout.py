"""A checkout is one thing: its `vit_tf`, `analysis` and `scripts` go together, however installed.

Nothing here imports TensorFlow: specifications of modules tell where they would come from.
"""

import json
import shutil
import subprocess
import sys

import pytest
from paths import ROOT, copy_checkout

import vit_tf

# What setuptools writes for an editable install: a last finder with a folder for each package.
PROBE = """
import json, sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, spec_from_file_location

sys.meta_path[:] = [one for one in sys.meta_path if "Editable" not in repr(one)]
install, folder = sys.argv[1:]
if install == "editable":
    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            places = {"vit_tf": "vit_tf"}
            places |= {f"vit_tf.{part}": part for part in ("analysis", "scripts")}
            if name in places:
                return spec_from_file_location(name, f"{folder}/{places[name]}/__init__.py")
    sys.meta_path.append(Finder)
elif install == "plain":
    sys.path.append(folder)

import vit_tf

package = find_spec("vit_tf")
analysis, scripts = find_spec("vit_tf.analysis"), find_spec("vit_tf.scripts")
print(json.dumps({
    "vit_tf": package.origin,
    "analysis": analysis and analysis.origin,
    "scripts": scripts and scripts.origin,
    "inside": analysis and list(analysis.submodule_search_locations),
    "light": not {"tensorflow", "keras"} & set(sys.modules),
}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two checkouts, `a` and `b`, a folder of installed packages, and one with nothing in it."""
    root = tmp_path_factory.mktemp("folders")
    for clone in ("a", "b"):
        copy_checkout(root / clone)
    shutil.copytree(root / "a" / "vit_tf", root / "site" / "vit_tf")
    for part in ("analysis", "scripts"):
        shutil.copytree(root / "a" / part, root / "site" / "vit_tf" / part)
    (root / "empty").mkdir()
    return root


def found(folders, install, where):
    """Where the package and its analysis come from, in a new process in a folder."""
    place = {"plain": folders / "site", "editable": folders / "a", "none": ""}[install]
    line = [sys.executable, "-c", PROBE, install, str(place)]
    done = subprocess.run(line, cwd=folders / where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_one(places, vit_tf_folder, analysis_folder):
    assert places["vit_tf"] == str(vit_tf_folder / "__init__.py")
    assert places["analysis"] == str(analysis_folder / "__init__.py")
    assert places["scripts"] == str(analysis_folder.parent / "scripts" / "__init__.py")
    assert places["inside"] == [str(analysis_folder)]
    assert places["light"]


@pytest.mark.parametrize("install", ["none", "plain", "editable"])
@pytest.mark.parametrize("clone", ["a", "b"])
def test_a_checkout_takes_its_own_analysis_whatever_is_installed(folders, install, clone):
    root = folders / clone
    assert_one(found(folders, install, clone), root / "vit_tf", root / "analysis")


def test_elsewhere_the_installed_package_is_whole(folders):
    site = folders / "site" / "vit_tf"
    assert_one(found(folders, "plain", "empty"), site, site / "analysis")
    root = folders / "a"
    assert_one(found(folders, "editable", "empty"), root / "vit_tf", root / "analysis")


def test_an_unrelated_folder_beside_an_installed_package_is_not_taken(folders):
    stray = folders / "site" / "analysis"
    stray.mkdir()
    (stray / "__init__.py").touch()
    try:
        site = folders / "site" / "vit_tf"
        assert_one(found(folders, "plain", "empty"), site, site / "analysis")
    finally:
        shutil.rmtree(stray)


def test_the_version_is_that_of_the_package():
    assert vit_tf.__version__ == "0.1.0"
    assert "version = attr: vit_tf.__version__" in (ROOT / "setup.cfg").read_text()
