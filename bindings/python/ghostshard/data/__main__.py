"""The old name of `ghostshard data`."""

import sys

from ghostshard.renamed import warn
from ghostshard.texts.__main__ import main

if __name__ == "__main__":
    warn("python -m ghostshard.data", "ghostshard data")
    sys.exit(main())
