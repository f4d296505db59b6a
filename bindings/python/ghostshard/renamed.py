"""Old names of modules, which stay for one release and warn."""

import importlib
import sys
import warnings


def alias(old: str, new: str, *submodules: str) -> None:
    """Fills the module `old` with the names of `new`, and makes `old.x` the module `new.x` for each of submodules.

    Called by the module `old` while it is imported. The DeprecationWarning points at the line that imports it.
    """
    warn(old, new, stacklevel=4)  # this module, `old`, whoever imports it; Python skips its own import machinery
    for name in submodules:
        sys.modules[f"{old}.{name}"] = importlib.import_module(f"{new}.{name}")
    names = vars(importlib.import_module(new))
    vars(sys.modules[old]).update({name: value for name, value in names.items() if not name.startswith("__")})


def warn(old: str, new: str, *, stacklevel: int = 2) -> None:
    warnings.warn(f"{old} is {new} now; the old name goes with the next release", DeprecationWarning, stacklevel=stacklevel)


__all__ = ["alias", "warn"]
