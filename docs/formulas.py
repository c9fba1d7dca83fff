"""A hook of MkDocs: fences of `math` become MathML, which browsers draw without a script."""

from latex2mathml.converter import convert


def on_config(config):
    fences = [{"name": "math", "class": "math", "format": as_mathml}]
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = fences
    return config


def as_mathml(source, language, css_class, options, markdown, **more):
    """The formulas of a fence, each line by itself."""
    # The converter does not know `\arg` and would print it.
    lines = [line.replace(r"\arg", r"\operatorname{arg}") for line in source.splitlines()]
    formulas = (convert(line, display="block") for line in lines if line.strip())
    return "".join(f'<p class="formula">{formula}</p>' for formula in formulas)
