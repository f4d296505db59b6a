"""The old name of examples/gpt2/demo/demo.py."""

import runpy

from ghostshard.renamed import warn
from ghostshard.texts.binary import repository

if __name__ == "__main__":
    warn("python -m ghostshard.demo", "python examples/gpt2/demo/demo.py")
    runpy.run_path(str(repository() / "examples" / "gpt2" / "demo" / "demo.py"), run_name="__main__")
