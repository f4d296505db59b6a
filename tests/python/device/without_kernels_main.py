"""The engine as it is built without CUDA, and a model on a device: see test_on_device.py.

    without_kernels_main.py results.json
"""

import json
import sys

from on_device import DEVICE, register_device

register_device()

from models import CASES
from private import Private
from refusals import sentence

build = next(case for case in CASES if case.name == "mlp").build
found = {
    "cpu": sentence(lambda: Private(build(), 1.0)),
    "device": sentence(lambda: Private(build().to(DEVICE), 1.0)),
}
with open(sys.argv[1], "w") as file:
    json.dump(found, file)
