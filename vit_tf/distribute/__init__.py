"""Distribution strategies: one device, several devices, or several machines."""

from vit_tf.data.batches import full_batches
from vit_tf.distribute.strategies import (
    STRATEGIES,
    divide_batches,
    is_chief,
    steps_per_execution,
    strategy,
    strategy_of,
    wait_for_workers,
)

__all__ = [
    "STRATEGIES",
    "divide_batches",
    "full_batches",
    "is_chief",
    "steps_per_execution",
    "strategy",
    "strategy_of",
    "wait_for_workers",
]
