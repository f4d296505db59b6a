#!/usr/bin/env bash
# Succeeds where PyTorch finds a CUDA device.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
exec .venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null
