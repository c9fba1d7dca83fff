"""The doors: each script parses its options, loads, calls the package and saves."""

import os

# Both count only when they are set before TensorFlow and Matplotlib are imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
