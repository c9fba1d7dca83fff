"""SIGTERM, which machines that are lent send some seconds before they end, heard between steps."""

import signal
import threading

from vit_tf.distribute.cluster import of_every_worker


class Preemption:
    """Hears SIGTERM within a `with`, so that a run can save its state before it ends.

    What SIGTERM does otherwise, it does when `deliver` is called, or at the end of the `with`. Only
    the main thread of a process can hear signals; elsewhere none is heard.
    """

    def __init__(self):
        self._heard = False
        self._before = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._hear) or signal.SIG_DFL
        return self

    def __exit__(self, kind, *_):
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            if self._heard and kind is None:
                signal.raise_signal(signal.SIGTERM)

    def asked(self):
        """Whether this process or another worker was asked to end; all workers must call this."""
        self._heard = bool(of_every_worker(self._heard).any())
        return self._heard

    def deliver(self):
        """Let SIGTERM do what it does outside of the `with`; returns if the process goes on."""
        self._heard = False
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number, frame):
        self._heard = True
