"""The old name of `python -m ghostshard.texts`."""

import sys

from ghostshard.renamed import warn
from ghostshard.texts.__main__ import main

if __name__ == "__main__":
    warn("python -m ghostshard.data", "python -m ghostshard.texts")
    sys.exit(main())
