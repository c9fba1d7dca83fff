"""The wheel alone, in a fresh environment and another folder: doors open, no file is missing."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile

import numpy as np
import pytest
from oracles import randomize
from paths import ROOT, copy_checkout
from PIL import Image

import vit_tf

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy of the files that it is made of."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    source = tmp_path_factory.mktemp("source")
    copy_checkout(source)
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    out = tmp_path_factory.mktemp("wheel")
    command = [*pip, "--no-index", "--no-build-isolation", "--wheel-dir", out, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = out.glob("vit_tf-*.whl")
    return path


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Function that runs a program of a fresh environment in a folder with a model and a photo.

    What the package needs comes from this environment, through a `.pth` file.
    """
    root = tmp_path_factory.mktemp("fresh")
    venv.create(root / "venv", symlinks=True)
    python = root / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "shared.pth").write_text("\n".join(shared) + "\n")
    work = root / "work"
    work.mkdir()
    vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 8, 10)
    randomize(vit)
    vit.save(work / "vit.keras")
    levels = np.random.default_rng(0).integers(0, 256, (20, 20, 3)).astype("uint8")
    Image.fromarray(levels).save(work / "photo.png")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run_program(program, *words):
        done = subprocess.run(
            [root / "venv" / "bin" / program, *words],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    run_program.folder, run_program.site = work, site
    return run_program


def test_the_wheel_holds_every_file_of_the_package(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("vit_tf/")}
    for folder, place in (("vit_tf", ""), ("analysis", "analysis/"), ("scripts", "scripts/")):
        for path in (ROOT / folder).rglob("*.*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"vit_tf/{place}{path.relative_to(ROOT / folder)}"
                assert name in held, name
                held.remove(name)
    assert not held


def test_the_command_is_installed(run):
    listed = run("vit-tf")
    assert re.search(r"^  study +Trains", listed, re.M)
    assert run("python", "-m", "vit_tf") == listed
    page = run("python", "-m", "vit_tf", "study", "--help")
    assert page.startswith("usage: vit-tf study") and "vit-tf study --figures 1,7,9" in page


def test_explore_writes_a_page(run):
    said = run("vit-tf", "explore", "vit.keras", "photo.png", "--samples", "1")
    assert "explore.html, " in said
    page = (run.folder / "explore.html").read_text("utf-8")
    assert "<h1>vit: photo.png</h1>" in page and "</html>" in page[-20:]
    assert "<style" in page and "<script" in page


def test_analyze_writes_a_report(run):
    words = ["--figures", "1", "--take-test", "60", "--shots", "3", "--strategy", "none"]
    run("python", "-m", "vit_tf", "analyze", "vit.keras", *words)
    page = (run.folder / "analysis_digits" / "report.html").read_text("utf-8")
    assert "<h1>Analysis of vit</h1>" in page and "block01/mlp/sum" in page
    assert "vit-tf analyze vit.keras --figures 1" in page
    assert "<style" in page and "<script" in page


def test_the_package_is_that_of_the_environment(run):
    code = "import vit_tf; from vit_tf import analysis; print(vit_tf.__file__, analysis.__file__)"
    package, analysis = run("python", "-c", code).split()
    assert package == str(run.site / "vit_tf" / "__init__.py")
    assert analysis == str(run.site / "vit_tf" / "analysis" / "__init__.py")
