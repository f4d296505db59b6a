"""The old name of examples/gpt2/demo/demo.py."""

import runpy

from ghostshard.binary import repository
from ghostshard.renamed import warn

if __name__ == "__main__":
    warn("python -m ghostshard.demo", "python examples/gpt2/demo/demo.py")
    runpy.run_path(str(repository() / "examples" / "gpt2" / "demo" / "demo.py"), run_name="__main__")
