"""Checks that per-example norms may be trusted.

guard      no trainable parameter gets a gradient past the rules
gradients  no example's gradient reaches other examples' rows
values     no example's values reach other examples' outputs
criterions nor their losses
"""
