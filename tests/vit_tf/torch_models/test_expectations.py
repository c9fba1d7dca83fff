"""What PyTorch modules expect of their images: size, grid, values and classes."""

import numpy as np
import pytest
from without_torchvision import import_or_skip

import vit_tf
from vit_tf import analysis
from vit_tf.checkpoints.configs import PROCESSORS
from vit_tf.features.class_names import imagenet_names

torch = pytest.importorskip("torch")
nn = torch.nn
WIDTH, HEADS = 12, 3


def as_torch(images):
    return torch.from_numpy(np.moveaxis(images, -1, 1).copy())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def split(self, x):
        return (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )

    def forward(self, x):
        x = nn.functional.scaled_dot_product_attention(*self.split(x))
        return self.out(x.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = (
            nn.LayerNorm(WIDTH),
            Attention(),
            nn.LayerNorm(WIDTH),
        )
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 20), nn.GELU(), nn.Linear(20, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AnySize(nn.Module):
    """A ViT without positions, which takes images of any size, in patches of (height, width)."""

    def __init__(self, patch):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, WIDTH, patch, patch), nn.LayerNorm(WIDTH)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def randomized(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.4)
    return module.eval()


def distances_by_hand(model, images, stride):
    """Mean attention distances (block, head) in pixels."""
    rows, columns = (length // stride for length in images.shape[1:3])
    places = np.stack(np.indices((rows, columns)).reshape(2, -1), -1) * float(stride)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    means = []
    with torch.no_grad():
        x = model.patch(as_torch(images)).flatten(2).transpose(1, 2)
        for block in model.blocks:
            q, k, _ = (part.double() for part in block.attention.split(block.norm1(x)))
            weights = (q @ k.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5).softmax(-1).numpy()
            means.append((weights * apart).sum(-1).mean((0, 2)))
            x = block(x)
    return np.array(means)


def test_the_size_and_the_grid_are_those_of_the_images(rng):
    model = randomized(AnySize((8, 8)))
    for size in ((48, 48), (32, 56)):
        images = rng.uniform(-1, 1, (6, *size, 3)).astype(np.float32)
        expected = distances_by_hand(model, images, 8)
        given = (size[0] // 8, size[1] // 8)
        for grid in (None, given):
            found = analysis.attention_distance(model, images, grid=grid)
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert analysis.attention_rollout(model, images).sizes["query"] == np.prod(given)
        field = analysis.receptive_field(model, images[:2])
        assert (field.sizes["row"], field.sizes["column"]) == size


def test_the_users_grid_takes_the_place_of_an_inferred_one(rng):
    model, images = (
        randomized(AnySize((8, 8))),
        rng.uniform(-1, 1, (4, 48, 48, 3)).astype("float32"),
    )
    expected = distances_by_hand(model, images, 8)
    twice = vit_tf.TokenGrid(6, 6, 0, 16)  # of images that were made half as large
    found = analysis.attention_distance(model, images, grid=twice)
    np.testing.assert_allclose(found, 2 * expected, rtol=1e-5)


def test_patches_that_are_not_square_have_no_inferred_grid(rng):
    model, images = (
        randomized(AnySize((4, 16))),
        rng.uniform(-1, 1, (4, 32, 32, 3)).astype("float32"),
    )
    with pytest.warns(UserWarning, match=r"grid.*its patches are not square"):
        assert analysis.features_of(model).token_grid is None
        with pytest.raises(ValueError, match="grid"):
            analysis.attention_distance(model, images)


def test_modules_that_resize_their_positions_take_other_sizes(rng, tmp_path):
    transformers = import_or_skip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.Dinov2Config(**sizes, mlp_ratio=2, image_size=70, patch_size=14)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    values = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "resample": 3}
    size, crop = {"shortest_edge": 64}, {"height": 56, "width": 56}
    processor = transformers.BitImageProcessor(size=size, crop_size=crop, **values)
    processor.save_pretrained(tmp_path)
    model = transformers.Dinov2Model.from_pretrained(tmp_path).eval()
    facts = analysis.features_of(model).facts
    assert facts.preprocessing.size == facts.image_size == (56, 56)
    assert (facts.preprocessing.mean, facts.preprocessing.crop) == ((0.4, 0.5, 0.6), 56 / 64)
    assert facts.preprocessing_origin == "set by its image processor"
    for size in ((56, 56), (70, 70), (28, 42)):
        images = rng.uniform(-1, 1, (8, *size, 3)).astype(np.float32)
        with torch.no_grad():
            states = model(as_torch(images), output_hidden_states=True).hidden_states
        found = analysis.cka(model, images, detail="blocks")
        expected = analysis.cka({str(i): state.numpy() for i, state in enumerate(states)})
        np.testing.assert_allclose(found.cka, expected.cka, atol=1e-5)


def test_released_values_of_families_without_a_stored_processor():
    transformers = import_or_skip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"image_size": 28, "patch_size": 14}

    def facts(kind, **fields):
        config = getattr(transformers, f"{kind}Config")(**(sizes | fields))
        return analysis.features_of(getattr(transformers, f"{kind}Model")(config).eval()).facts

    dinov2, vit = facts("Dinov2"), facts("ViT", intermediate_size=20)
    images = dinov2.preprocessing
    assert (images.mean, images.crop) == ((0.485, 0.456, 0.406), 224 / 256)
    assert images.interpolation == "bicubic" and "released" in dinov2.preprocessing_origin
    # Releases of Google and of DINO differ.
    assert vit.preprocessing is None and "no image processor is stored" in vit.preprocessing_origin
    siglip = facts("SiglipVision", intermediate_size=20).preprocessing
    assert (siglip.mean, siglip.std, siglip.crop) == ((0.5,) * 3, (0.5,) * 3, None)
    stages = {"neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16], "hidden_sizes": [8, 8, 8]}
    with pytest.warns(UserWarning, match="has 25 blocks, but 18 layers are found"):
        mobilevit = facts("MobileViT", **stages, image_size=64, patch_size=2).preprocessing
    assert mobilevit.channel_order == "bgr" and mobilevit.mean == (0, 0, 0)


def test_families_are_those_of_the_loader():
    from vit_tf.torch_models.expectations import FAMILIES

    for kind, (_, images) in PROCESSORS.items():
        own = FAMILIES.get(kind.removesuffix("_vision_model"))
        if images is None:
            assert own is None
        else:
            loaded = images["values"] | {key: images[key] for key in ("interpolation", "crop")}
            assert own == loaded


def test_modules_of_timm_of_1000_classes_have_the_names_of_imagenet():
    timm = import_or_skip("timm")
    sizes = {"depth": 1, "embed_dim": 12, "num_heads": 2, "img_size": 32}
    model = timm.create_model("vit_tiny_patch16_224", **sizes)
    assert analysis.features_of(model).facts.class_names == imagenet_names()
    assert imagenet_names()[281] == "tabby"
    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, **sizes)
    assert analysis.features_of(model).facts.class_names == ()


def test_tokens_that_are_shuffled_have_no_grid(rng):
    transformers = import_or_skip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 20, "image_size": 32, "patch_size": 8}
    config = transformers.ViTMAEConfig(**sizes, mask_ratio=0.0)
    model, images = transformers.ViTMAEModel(config).eval(), rng.uniform(-1, 1, (4, 32, 32, 3))
    with (
        pytest.warns(UserWarning, match="by rand in 'embeddings'"),
        pytest.warns(UserWarning, match="shuffle tokens"),
        pytest.raises(ValueError, match="grid"),
    ):
        analysis.attention_distance(model, images.astype(np.float32))


class Noisy(nn.Module):
    """A block whose dropouts do not depend on its mode."""

    def __init__(self, p):
        super().__init__()
        self.qkv, self.mlp, self.p = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), p

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.p)
        x = x + heads.transpose(1, 2).flatten(2)
        return x + nn.functional.dropout(self.mlp(x), self.p)


def noisy_vit(p):
    model = AnySize((8, 8))
    model.blocks = nn.Sequential(Noisy(p), nn.Dropout(0.5), Noisy(p))
    return randomized(model)


def test_random_numbers_in_inference_are_named(rng):
    """Values by the module itself with the same seed, and weights by those without dropout."""
    images = rng.uniform(-1, 1, (6, 32, 32, 3)).astype("float32")
    weights = "blocks.0/attention/weights"
    model, calm, kept = noisy_vit(0.25), noisy_vit(0.0), []
    calm.load_state_dict(model.state_dict())
    expected = vit_tf.torch_features(calm, weights)(images)[weights]
    words = "by scaled_dot_product_attention in 'blocks.0', dropout in 'blocks.0': its values are"
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match=words):
        found = vit_tf.extract_features(model, images, layers="blocks.2")["blocks.2"]
    handle = model.blocks[2].register_forward_hook(
        lambda _, inputs, output: kept.append(output.detach())
    )
    model(as_torch(images))
    handle.remove()
    np.testing.assert_allclose(found, kept[0], atol=1e-6)
    # About a quarter of the attention weights are dropped, and the others are larger.
    with pytest.warns(UserWarning, match=words):
        dropped = vit_tf.torch_features(model, weights)(images)[weights]
    is_kept = dropped != 0
    np.testing.assert_allclose(dropped[is_kept], expected[is_kept] / 0.75, rtol=1e-5)
    assert 0.7 < is_kept.mean() < 0.8
    # Dropout leaves the tokens where they are.
    with pytest.warns(UserWarning, match=words):
        assert analysis.features_of(model).token_grid == vit_tf.TokenGrid(28, 28, 0, 8)


class Repeated(nn.Module):
    """A module that repeats grey images to three channels."""

    def __init__(self):
        super().__init__()
        self.net = AnySize((8, 8))

    def forward(self, x):
        return self.net(x.repeat(1, 3, 1, 1))


class Pair(nn.Module):
    """A module of two images in six channels, which one encoder reads."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Tanh(), nn.Conv2d(4, 6, 3, 2, 1))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        first, second = self.encoder(x[:, :3]), self.encoder(x[:, 3:])
        return self.head((first - second).abs().mean((2, 3)))


@pytest.mark.parametrize(
    ("make", "channels", "paths"),
    [(Repeated, 1, ["net.blocks.0", "net.blocks.1"]), (Pair, 6, ["encoder.0", "encoder.2"])],
)
def test_images_have_the_channels_that_are_given(rng, make, channels, paths):
    """A module's first convolution may see others: by hooks, and gradients by autograd."""
    model, expected = randomized(make()), {}
    images = rng.uniform(-1, 1, (6, 32, 32, channels)).astype("float32")
    hooks = [
        model.get_submodule(path).register_forward_hook(
            lambda _, inputs, output, path=path: expected.update(
                {path: expected.get(path, output.detach())}  # of the first call
            )
        )
        for path in paths
    ]
    pixels = as_torch(images).requires_grad_(True)
    (gradients,) = torch.autograd.grad(model(pixels)[:, 2].sum(), pixels)
    for hook in hooks:
        hook.remove()
    by_hand = {path: x.movedim(1, -1) if x.dim() == 4 else x for path, x in expected.items()}
    for values in (
        vit_tf.torch_features(model, paths)(images),
        vit_tf.extract_features(model, images, layers=paths),
    ):
        for path in paths:
            np.testing.assert_allclose(values[path], by_hand[path], atol=1e-6)
    found = analysis.input_gradients(model, images, classes=[2], samples=1, noise=0)
    np.testing.assert_allclose(found.values[:, 0], gradients.movedim(1, -1), atol=1e-6)
    if channels == 1:  # which is tried, where there are no images yet
        assert analysis.features_of(model).facts.input_shape[3] == channels


def test_modules_of_video_are_refused_with_what_is_supported(rng):
    model = nn.Sequential(nn.Conv3d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)).eval()
    clips = rng.uniform(-1, 1, (4, 6, 16, 16, 3)).astype("float32")
    with pytest.raises(ValueError, match=r"video \(Conv3d\).*forward takes one image"):
        analysis.cka(model, clips)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_the_head_of_a_quantized_module_is_applied_to_each_layer(rng):
    """Class scores of the module, and of its own norm and head on each block, by hand."""
    images = rng.uniform(-1, 1, (6, 32, 32, 3)).astype("float32")
    whole = randomized(AnySize((8, 8)))
    model = torch.ao.quantization.quantize_dynamic(whole, {nn.Linear}, dtype=torch.qint8)
    lens, scores = analysis.logit_lens(model, images), {}
    with torch.no_grad():
        x = model.patch(as_torch(images)).flatten(2).transpose(1, 2)
        for number, block in enumerate(model.blocks):
            x = block(x)
            scores[f"block{number:02d}/mlp/sum"] = model.head(model.norm(x).mean(1)).numpy()
        last = model(as_torch(images)).softmax(-1).numpy()
    for layer, expected in scores.items():
        np.testing.assert_allclose(lens.sel(layer=layer), expected, atol=1e-5)
    found = analysis.predict(model, images).probability
    np.testing.assert_allclose(found, -np.sort(-last), atol=1e-5)


class TwoLayers(AnySize):
    """A ViT whose head also reads the patches."""

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1) + x.mean(1))


def test_scores_of_two_layers_are_not_those_of_the_last(rng):
    images = rng.uniform(-1, 1, (4, 32, 32, 3)).astype("float32")
    with pytest.raises(ValueError, match="'TwoLayers' cannot be split"):
        analysis.logit_lens(randomized(TwoLayers((8, 8))), images)
