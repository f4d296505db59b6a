"""Which modules cannot be trained privately, by Opacus' validators; those that have a rule here are taken."""

from __future__ import annotations

from opacus.utils.module_utils import trainable_modules
from opacus.validators import ModuleValidator
from opacus.validators.errors import IllegalModuleConfigurationError, ShouldReplaceModuleError, UnsupportedModuleError
from torch import jit, nn

from ..layout import original_class

_TAKEN = (nn.LSTM, nn.GRU, nn.MultiheadAttention)

_OWN_BATCH_NORM = (
    "{} ({}) is a BatchNorm by inheritance: what it gives an example follows from the others of the batch. ModuleValidator.fix() does not replace it: take "
    "another norm (nn.GroupNorm), or put it into evaluation mode and freeze it"
)


def refuse_unsupported(model: nn.Module) -> None:
    """UnsupportedModuleError (Opacus') with every module that mixes examples, or a model that is not in training mode."""
    errors = []
    if not model.training:
        errors.append(IllegalModuleConfigurationError("Model needs to be in training mode"))
    scripted = next((name for name, module in model.named_modules() if isinstance(module, jit.ScriptModule)), None)
    if scripted is not None:
        raise UnsupportedModuleError(
            [IllegalModuleConfigurationError(f"{scripted or 'the model'} is TorchScript, whose layers cannot be recorded: use the module it was made from")]
        )
    lazy = next((name for name, value in model.named_parameters() if nn.parameter.is_lazy(value)), None)
    if lazy is not None:
        why = f"parameter {lazy!r} has no shape yet (nn.Lazy…): call the model once before make_private(), on numbers of a batch's shape"
        raise UnsupportedModuleError([IllegalModuleConfigurationError(why)])
    for name, module in trainable_modules(model):
        kind = original_class(module)
        if kind not in ModuleValidator.VALIDATORS and isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            errors.append(ShouldReplaceModuleError(_OWN_BATCH_NORM.format(name, kind.__name__)))
        if kind in ModuleValidator.VALIDATORS and kind not in _TAKEN:
            errors.extend(ModuleValidator.VALIDATORS[kind](module))
    if errors:
        raise UnsupportedModuleError(errors)


__all__ = ["refuse_unsupported"]
