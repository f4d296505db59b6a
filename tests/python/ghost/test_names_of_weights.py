"""A checkpoint's file of a wrapped model is loaded into one that stays the user's own, and the reverse; a handle beside the model stands for it."""

import pytest
import torch
from private_run import Run
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")


class Parts(nn.Module):
    """Has a part of the wrapper's name, and one whose version stands in the state."""

    _version = 3

    def __init__(self):
        super().__init__()
        self._module, self.out = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self._module(x).tanh())

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        assert local_metadata["version"] == 3
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


def begun(wrap_model, model) -> tuple:
    run = Run(model=model(), wrap_model=wrap_model, draws=(4, 3))
    return run, (run.module if wrap_model else run.model)


@pytest.mark.parametrize("model", [lambda: nn.Linear(6, 3), Parts, lambda: nn.Sequential(Parts())], ids=["a layer", "parts", "in a sequence"])
@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True), (False, False)])
def test_in_both_directions(before, after, model, tmp_path):
    run, saved = begun(before, model)
    for x, y in run.loader:
        run.optimizer.zero_grad()
        run.criterion(saved(x), y).backward()
        run.optimizer.step()
    run.engine.save_checkpoint(path=tmp_path / "file", module=saved, optimizer=run.optimizer)
    other, loaded = begun(after, model)
    nn.init.zeros_(next(other.model.parameters()))
    other.engine.load_checkpoint(path=tmp_path / "file", module=loaded, optimizer=other.optimizer)
    assert all(torch.equal(one, two) for one, two in zip(run.model.parameters(), other.model.parameters(), strict=True))
    assert other.charged == 2


def test_a_handle_stands_for_its_model(tmp_path):
    run, _ = begun(False, lambda: nn.Linear(6, 3))
    run.engine.save_checkpoint(path=tmp_path / "file", module=run.module, optimizer=run.optimizer)
    assert set(torch.load(tmp_path / "file", weights_only=False)["module_state_dict"]) == {"weight", "bias"}
    other, _ = begun(False, lambda: nn.Linear(6, 3))
    nn.init.zeros_(other.model.weight)
    other.engine.load_checkpoint(path=tmp_path / "file", module=other.module)
    assert torch.equal(other.model.weight, run.model.weight)


def test_another_models_weights_are_refused_as_ever(tmp_path):
    run, saved = begun(True, lambda: nn.Sequential(nn.Linear(6, 3)))
    run.engine.save_checkpoint(path=tmp_path / "file", module=saved)
    other, loaded = begun(False, lambda: nn.Linear(6, 3))
    with pytest.raises(RuntimeError, match="Missing key"):
        other.engine.load_checkpoint(path=tmp_path / "file", module=loaded)


@pytest.mark.parametrize("most", [0, 2.5, "3", None, True])
def test_the_largest_physical_batch_is_a_whole_number(most):
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    run = Run()
    with pytest.raises(ValueError, match="max_physical_batch_size must be a whole number >= 1, got"):
        BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=most, optimizer=run.optimizer).__enter__()
