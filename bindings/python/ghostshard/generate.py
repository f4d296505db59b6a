"""python -m ghostshard.generate, the command that continues a prompt; see texts/generate.py."""

import sys

from ghostshard.texts.generate import Sampling, generate, main

__all__ = ["Sampling", "generate", "main"]

if __name__ == "__main__":
    sys.exit(main())
