"""`python -m vit_tf` is the command `vit-tf`."""

import sys

from vit_tf.scripts.cli import main

if __name__ == "__main__":
    sys.exit(main())
