"""Tiny CLIP, BEiT, BiT and MAE of transformers, and the folders that it writes of them."""

import hugging_face_models as models
import torch
import transformers

VISION = models.SIZES | {"intermediate_size": 40, "image_size": 20, "projection_dim": 7}
TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 9}
TEXT |= {"num_attention_heads": 2, "max_position_embeddings": 5}
BEIT = models.SIZES | {"intermediate_size": 40, "image_size": 20, "layer_norm_eps": 1e-12}
SHARED = {"use_shared_relative_position_bias": True, "use_mask_token": True, "vocab_size": 9}
NAMES = {"id2label": {0: "crane", 1: "tabby, tabby cat", 2: "crane"}}
BIT = {"embedding_size": 32, "hidden_sizes": [128, 256], "depths": [1, 2]}
MAE = models.SIZES | {"intermediate_size": 40, "image_size": 20, "mask_ratio": 0.0}
MAE |= {"decoder_hidden_size": 16, "decoder_intermediate_size": 16, "layer_norm_eps": 1e-12}
MAE |= {"decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
WHOLE = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 7}
models.MODELS |= {
    "clip": ("CLIPModel", "CLIPConfig", WHOLE),
    "clip-vision": ("CLIPVisionModel", "CLIPVisionConfig", VISION | {"hidden_act": "gelu"}),
    "clip-projected": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", VISION),
    "beit": (
        *("BeitForImageClassification", "BeitConfig"),
        BEIT | {"use_relative_position_bias": True} | NAMES,
    ),
    "beit-plain": (
        *("BeitModel", "BeitConfig"),
        BEIT | {"use_relative_position_bias": True, "layer_scale_init_value": 0},
    ),
    "beit-shared": ("BeitForMaskedImageModeling", "BeitConfig", BEIT | SHARED),
    "bit": ("BitForImageClassification", "BitConfig", BIT | NAMES),
    "bit-bare": ("BitModel", "BitConfig", BIT),
    "metaclip2": ("MetaClip2Model", "MetaClip2Config", WHOLE),
    "metaclip2-vision": (
        *("MetaClip2VisionModel", "MetaClip2VisionConfig"),
        VISION | {"hidden_act": "gelu"},
    ),
    "metaclip2-projected": (
        *("MetaClip2VisionModelWithProjection", "MetaClip2VisionConfig"),
        VISION,
    ),
    "mae": ("ViTMAEForPreTraining", "ViTMAEConfig", MAE),
}
TOWERS = ("clip", "clip-vision", "clip-projected", "beit", "beit-plain", "beit-shared")
TOWERS += ("bit", "bit-bare", "mae", "metaclip2", "metaclip2-vision", "metaclip2-projected")


def processor(name, size=20):
    """The image processor that goes with a model of the table."""
    square, values = {"height": size, "width": size}, {"image_mean": [0.4] * 3}
    if "clip" in name:
        edge = {"shortest_edge": size}
        return transformers.CLIPImageProcessor(size=edge, crop_size=square, **values)
    if name.startswith("beit"):
        larger = {"height": size + 4, "width": size + 4}
        return transformers.BeitImageProcessor(size=larger, crop_size=square, **values)
    if name.startswith("bit"):
        edge = {"shortest_edge": size + 4}
        return transformers.BitImageProcessor(size=edge, crop_size=square, **values)
    return transformers.ViTImageProcessor(size=square, **values)


def _modules(model):
    """dict from tap to the module of transformers' that makes it."""
    inner = getattr(model, model.base_model_prefix, model)
    if hasattr(model, "vision_model"):
        inner = model.vision_model
        found = {"pre_norm": inner.pre_layrnorm, "pooled": inner.post_layernorm}
        layers = inner.encoder.layers
    elif hasattr(inner, "embedder"):
        units = {
            f"stage{s + 1}/unit{u + 1:02d}/sum": unit
            for s, stage in enumerate(inner.encoder.stages)
            for u, unit in enumerate(stage.layers)
        }
        # Its normalisation applies the ReLU too.
        return units | {"pooled": inner.pooler}
    else:
        found, layers = {"embedding": inner.embeddings}, inner.encoder.layer
        if isinstance(model, transformers.BeitForMaskedImageModeling):
            found["norm"] = model.layernorm
        elif isinstance(inner, transformers.BeitModel):
            found["fc_norm"] = inner.pooler.layernorm
        else:
            found["norm"] = inner.layernorm
    return found | {f"block{i:02d}/mlp/sum": layer for i, layer in enumerate(layers)}


def taps(model, images):
    """dict from tap to what transformers makes of images (example, height, width, channel)."""
    found = {}

    def catch(tap):
        def hook(module, inputs, output):
            x = (output[0] if isinstance(output, tuple) else output).detach()
            if x.ndim == 4:
                x = x.permute(0, 2, 3, 1)
            found[tap] = x.flatten(1).numpy() if tap == "pooled" else x.numpy()

        return hook

    hooks = [part.register_forward_hook(catch(tap)) for tap, part in _modules(model).items()]
    pixels = torch.tensor(images.transpose(0, 3, 1, 2).copy())
    options = {}
    if isinstance(model, transformers.ViTMAEForPreTraining):
        # In their own order, of which none is left out.
        patch = model.config.patch_size
        patches = (images.shape[1] // patch) * (images.shape[2] // patch)
        options["noise"] = torch.arange(patches).repeat(len(images), 1) / patches
    if isinstance(model, transformers.CLIPModel | transformers.MetaClip2Model):
        with torch.no_grad():
            found["projected"] = model.get_image_features(pixels).numpy()
    else:
        with torch.no_grad():
            outputs = model(pixels, **options)
        if hasattr(outputs, "image_embeds"):
            found["projected"] = outputs.image_embeds.numpy()
        elif hasattr(model, "vision_model"):
            found["projected"] = outputs.pooler_output.numpy()
        elif "ForImageClassification" in type(model).__name__:
            found["logits"] = outputs.logits.numpy()
    for hook in hooks:
        hook.remove()
    return found
