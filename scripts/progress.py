"""One progress bar over work of several stages, with the time that is left."""

import contextlib
import logging
import threading
import time

from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm


class Progress:
    """A bar on the standard error, where that is a terminal; lines of the log stand above it.

    Called with a stage, how much of it is done, of how much, and what is being done, in words.

    Args:
        stages: dict from the name of a stage to the seconds that it may take. Only their ratios
            matter once the first stages are over.
    """

    def __init__(self, stages):
        self._stages, self._done = stages, dict.fromkeys(stages, 0.0)
        self.seconds = sum(stages.values())

    @property
    def done(self):
        """The seconds that all that is done may have taken."""
        return sum(self._done.values())

    @contextlib.contextmanager
    def shown(self):
        """Shows the bar while the work is going on."""
        shape = "{percentage:3.0f} %|{bar}| {elapsed} gone, about {remaining} left: {desc}"
        self._bar = tqdm(total=self.seconds, bar_format=shape, disable=None, leave=False)
        with self._bar, logging_redirect_tqdm():
            yield

    def __call__(self, stage, done, of, words=""):
        if words:
            self._bar.set_description_str(words, refresh=False)
        before = self.done
        self._done[stage] = self._stages[stage] * done / of
        self._bar.update(self.done - before)


class _LastLine(logging.Handler):
    """When a line was logged last, and which."""

    def __init__(self):
        super().__init__()
        self.words, self.time = "starting", time.monotonic()

    def emit(self, record):
        if record.msg != STILL:
            self.words, self.time = record.getMessage(), time.monotonic()


STILL = "still at it after %d s: %s"
SECONDS = (10, 20, 40, 60)  # until the first line, the second and so on; the last is repeated


@contextlib.contextmanager
def lines_while_working(logger):
    """Logs that a step is still going on, 10 s after its line, and then less and less often."""
    last, stopped = _LastLine(), threading.Event()

    def watch():
        begun, count, spoken = last.time, 0, last.time
        while not stopped.wait(SECONDS[0] / 10):
            if last.time != begun:
                begun, count, spoken = last.time, 0, last.time
            now = time.monotonic()
            if now - spoken >= SECONDS[min(count, len(SECONDS) - 1)]:
                logger.info(STILL, now - begun, last.words)
                count, spoken = count + 1, now

    thread = threading.Thread(target=watch, daemon=True)
    logger.addHandler(last)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        logger.removeHandler(last)


def told_to(progress):
    """A Keras callback that tells of the steps of a training.

    Args:
        progress: function that is called with the number of steps that are done, and of all.
    """
    import keras

    epochs = {"done": 0}

    def tell(batch, logs=None):
        steps, rounds = callback.params["steps"], callback.params["epochs"]
        progress(epochs["done"] * steps + batch + 1, rounds * steps)

    callback = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs=None: epochs.update(done=epoch),
        on_train_batch_end=tell,
    )
    return callback
