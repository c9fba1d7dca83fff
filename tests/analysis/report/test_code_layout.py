"""The code of figures is laid out without a change of what it computes."""

import ast

import pytest

from vit_tf.analysis.report.code_layout import WIDTH, lay_out

# fmt: off
# ruff: noqa: E501
CODES = [
    "x = 1",
    "# a comment that is longer than a line, as comments are free to be, and that stays as it is",
    "results = {model: analysis.cka(model, images, detail='sublayers') for model in ('first-model', 'b')}",
    "for result in results.values():\n    analysis.plots.plot_cka(result, title='a ( [ { \"title\" with brackets, and commas')",
    "analysis.plots.plot_attention_offset(analysis.attention_offset(analysis.aligned_attention(analysis.mean_attention('vit-cls', images))))",
    "plot({'ViT': analysis.cka('vit', images, layers=['block*/mlp/sum', 'norm'], detail=None), 'BiT': f(a)}, limits=(0, 1), names=('one',))",
    "(images,) = data.load('photographs', splits=('all',), take=200, batch_size=25, shuffle_once=True)",
]


@pytest.mark.parametrize("code", CODES)
def test_laid_out_code_is_the_same_program(code):
    made = lay_out(code)
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(code))
    is_long = [line for line in made.splitlines() if len(line) > WIDTH]
    assert all(line.startswith("#") or "title=" in line for line in is_long)


def test_a_broken_call_has_one_argument_a_line():
    code = "plot(first_argument_of_many_letters, second_argument_of_many_letters, third_argument='of letters')"
    assert lay_out(code).splitlines() == [
        "plot(",
        "    first_argument_of_many_letters,",
        "    second_argument_of_many_letters,",
        '    third_argument="of letters",',
        ")",
    ]
