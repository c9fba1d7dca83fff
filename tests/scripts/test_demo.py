"""The command that measures two bundled models on the photographs of the package."""

import pytest

from vit_tf.scripts import demo


@pytest.mark.long  # `.ci/run` begins with the command
def test_a_report_links_to_the_page_of_the_photographs(tmp_path):
    line = ["--figures", "3", "--photographs", "cat", "--out", str(tmp_path / "out")]
    assert demo.main(line) == 0
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    page = (tmp_path / "out" / "explore.html").read_text("utf-8")
    assert 'href="explore.html"' in report and "200 images of photographs" in report
    for text in (report, page):
        assert all(name in text for name in demo.MODELS)
    assert "cat.jpg" in page


def test_unknown_photographs_and_figures_are_errors(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert demo.main(["--photographs", "tigre", "--out", out]) == 2
    assert "tiger" in capsys.readouterr().err
    assert demo.main(["--figures", "1,99", "--out", out]) == 2
    assert "99" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
