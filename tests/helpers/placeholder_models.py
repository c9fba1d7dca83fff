"""Models of every role that a figure can show, which have layers and shapes but no weights."""

from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from study_models import lazy_features, study_model_of

from vit_tf.analysis.figures.models import BASELINES, StudyModel
from vit_tf.features.tokens import TokenGrid


def study_models() -> list[StudyModel]:
    """A placeholder model of each role of a study, of which nothing can be computed."""
    sites = {"attention": ("weights", "heads"), "mlp": ("hidden",)}
    vit = partial(_nominal, taps=_taps("block{:02}", sites), grid=TokenGrid(2, 2, 1, 8))
    cls, gap = vit("ViT", "vit"), vit("GAP", "gap", grid=TokenGrid(2, 2, 0, 8))
    bit = _nominal("BiT", "resnet", ("root", *_taps("stage{}/unit01", {}), "logits"))
    sites = {"token_mixing": ("hidden",), "channel_mixing": ("hidden",)}
    mixer = _nominal("Mixer", "mixer", _taps("block{:02}", sites))
    before = replace(cls, name="before", role="before", base=cls)
    variants = [
        replace(cls, name=role, role=role, detail=detail, base=cls)
        for role, detail in (
            *(("without", "block00"), ("seed", 1), ("fraction", 0.1)),
            *((role, None) for role in ("larger", "hybrid", "masked", "tuned")),
        )
    ]
    variants.append(replace(bit, name="less data", role="fraction", detail=0.1, base=bit))
    baselines = [replace(cls, name=role, role=role, base=cls) for role in BASELINES]
    tuned = [replace(cls, name=role, role=role, base=before) for role in ("after", "far")]
    return [cls, gap, bit, mixer, *variants, before, *tuned, *baselines]


def user_models() -> list[StudyModel]:
    """Placeholders of the user's models, whose shapes are known: two of each kind."""
    models = []
    for model in study_models()[:4]:
        tokens = model.require_grid().num_tokens
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(model.taps, (tokens, 8))
        if model.role == "resnet":
            shapes = dict.fromkeys(model.taps, (2, 2, 8))
        for tap in model.taps:
            if tap.endswith("/weights"):
                shapes[tap] = (2, tokens, tokens)
            if tap.endswith("/heads"):
                shapes[tap] = (tokens, 2, 4)
        shapes |= dict.fromkeys(("pooled", "logits"), (8,))
        size = (16, 16)
        features = lazy_features(model.name, model.taps, model.grid, None, shapes, size)
        foreign = replace(model, role="model", features=features)
        models += [foreign, replace(foreign, name=f"{foreign.name} 2")]
    return models


def _nominal(
    name: str, role: str, taps: tuple[str, ...], grid: TokenGrid | None = None
) -> StudyModel:
    def of_layer(*_: str) -> NoReturn:
        raise NotImplementedError(f"{name} is a placeholder without weights.")

    taps = taps if role == "resnet" else ("embedding", *taps, "norm", "pooled", "logits")
    grid = grid or TokenGrid(2, 2, 0, 8)
    layers: dict[str, Any] = {"training_flops": of_layer}
    layers["first_layer"] = "patch_kernel", "position_embedding"
    return study_model_of(name, role, name, taps, grid, of_layer, accuracy=(0.5, 8), **layers)


def _taps(block: str, sites: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The taps of two blocks, of the sites that the tap grammar gives them."""
    ends = ("skip", "branch", "sum")
    return tuple(
        f"{block.format(number)}{f'/{site}' if site else ''}/{end}"
        for number in (range(2) if sites else range(1, 3))
        for site, own in (sites or {"": ("norm1",)}).items()
        for end in ("norm", *own, *ends)
    )
