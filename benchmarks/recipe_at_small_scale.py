"""Trains a scaled plain-ViT recipe here and the same settings in timm, with equal budgets.

    python benchmarks/recipe_at_small_scale.py --data cifar10 --epochs 5 --seeds 3

Both sides train a ViT of equal size on the same images in random order, mirrored at random, with
AdamW, gradients clipped to norm 1, linear warm-up of a tenth of the steps and a cosine to 0. The
output is one line of JSON for each run (side, seed, training loss and test accuracy of each epoch),
and in the end the mean and the standard deviation of the last accuracies over seeds. It needs timm
and torch.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

import vit_tf

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

SIZE = {"patch_size": 4, "num_layers": 4, "num_heads": 3, "hidden_dim": 96, "mlp_dim": 192}
SIDE, RATE, WEIGHT_DECAY = 32, 1e-3, 0.1


def train_here(data, num_classes, epochs, seed, folder):
    """Training losses and test accuracies of each epoch, in this package."""
    keras.utils.set_random_seed(seed)
    model = vit_tf.ViT(
        (SIDE, SIDE, 3), num_classes=num_classes, pooling="gap", activation="gelu_tanh", **SIZE
    )
    recipe = vit_tf.Recipe(
        epochs=epochs,
        learning_rate=RATE,
        weight_decay=WEIGHT_DECAY,
        label_smoothing=0.0,
        flip=True,
        epsilon=1e-8,
        seed=seed,
    )
    history = vit_tf.train(model, recipe, *data, folder, verbose=0)
    return history["loss"], history["val_accuracy"]


def train_timm(data, num_classes, epochs, seed):
    """The same in timm, from the same pipeline of images."""
    import torch
    from without_torchvision import import_or_skip

    timm = import_or_skip("timm")
    torch.manual_seed(seed)
    train, test = (data[0], data[1])
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=SIDE,
        patch_size=SIZE["patch_size"],
        num_classes=num_classes,
        global_pool="avg",
        class_token=False,
        fc_norm=False,
        embed_dim=SIZE["hidden_dim"],
        depth=SIZE["num_layers"],
        num_heads=SIZE["num_heads"],
        mlp_ratio=SIZE["mlp_dim"] / SIZE["hidden_dim"],
        act_layer=lambda: torch.nn.GELU("tanh"),
    )
    # Kernels are decayed, biases, norms and positions are not, as in this package.
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1 and "pos" not in name]
    chosen = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in chosen]
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-8)
    steps = epochs * int(train.cardinality())
    warmup = steps // 10

    def factor(step):
        progress = (step - warmup) / (steps - warmup)
        return step / warmup if step < warmup else (1 + math.cos(math.pi * progress)) / 2

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    flipped = vit_tf.data.augment(train, num_classes, flip=True, seed=seed)
    losses, accuracies = [], []
    for _ in range(epochs):
        model.train()
        total, count = 0.0, 0
        for images, labels in flipped.as_numpy_iterator():
            inputs = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
            loss = torch.nn.functional.cross_entropy(model(inputs), torch.from_numpy(labels))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total, count = total + loss.item() * len(labels), count + len(labels)
        losses.append(total / count)
        model.eval()
        correct = []
        with torch.no_grad():
            for images, labels in test.as_numpy_iterator():
                scores = model(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
                correct.append(scores.argmax(1).numpy() == labels)
        accuracies.append(float(np.concatenate(correct).mean()))
    return losses, accuracies


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument(
        "--take", type=int, help="training images, and a fifth as many for the test"
    )
    options = parser.parse_args()
    last = {"vit_tf": [], "timm": []}
    for seed in range(options.seeds):
        data = vit_tf.data.load(
            options.data,
            data_dir=options.data_dir,
            image_size=SIDE,
            batch_size=options.batch_size,
            splits=("train", "test"),
            take=options.take and {"train": options.take, "test": options.take // 5},
            seed=seed,
        )
        num_classes = len(data[0].class_names)
        with tempfile.TemporaryDirectory() as folder:
            here = train_here(data, num_classes, options.epochs, seed, folder)
        there = train_timm(data, num_classes, options.epochs, seed)
        for side, (losses, accuracies) in (("vit_tf", here), ("timm", there)):
            run = {"side": side, "seed": seed, "loss": losses, "accuracy": accuracies}
            print(json.dumps(run), flush=True)
            last[side].append(accuracies[-1])
    deviation = {side: float(np.std(x, ddof=min(1, len(x) - 1))) for side, x in last.items()}
    means = {side: float(np.mean(x)) for side, x in last.items()}
    print(json.dumps({"mean": means, "deviation": deviation}))


if __name__ == "__main__":
    main()
