"""The check of the figures in README and docs: tools/check_figures.py."""
