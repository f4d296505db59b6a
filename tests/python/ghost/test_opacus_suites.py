"""Opacus' own test files (opacus/tests of the wheel), run with ours in the place of its classes. test_opacus_own.py has its
privacy_engine_test; this file has the rest. Hypothesis draws few examples of each (the suites' own default is 100).

Replacements: our accountants and get_noise_multiplier; PoissonBatchSampler for both uniform samplers; GhostDataLoader for
DPDataLoader; PrivacyEngine in mode "ghost"; GhostModule, GhostOptimizer and PrivateCriterion for the module, optimizer and
loss of fast gradient clipping; PrivateLoss for its tensor; and for compute_opacus_grad_sample per-example gradients as our
engine has them: the step without noise in which one example alone has a loss. Their oracle, examples one by one, stays theirs.

Tests left out, and why:
  accountants: test_prv_accountant, test_get_noise_multiplier_{rdp,prv}_{epochs,steps}
                            ask for the digits of Opacus' own grids and bisections; ours are certified and tighter, which
                            test_accountants.py compares (below: never above Opacus' own number)
  accountants: test_gdp_accountant, test_get_noise_multiplier_gdp, AccountantRegistryTest     Opacus' own classes alone
  distributed_poisson       asks sys-wide stand-ins of torch.distributed for its place; ours is told rank and world size
                            (below: with their data, their claims)
  dpdataloader: test_collate_classes, test_collate_tensor, test_empty_first_batch_with_dp_dataloader
                            rest on which batches one seed of Opacus' sampler leaves empty, and on its log lines; ours knows
                            an empty batch's structure from the first (tests/python/loaders)
  dpdataloader: CollateFnWithEmptyTest      a class of Opacus' that ours extends, called directly
  randomness: tests in which torch.manual_seed decides coins or noise (test_global_seed and its like): here only a generator
                            does; the rest of OptimizerRandomnessTest and PrivacyEngineSecureModeTest goes backward from a
                            plain tensor (test_privacy_engine.py has the same claims)
  fast gradient clipping: test_norm_calculation*     read p._norm_sample, which is never formed; test_multidevice_*: two GPUs
  fast gradient clipping: what it inherits from GradSampleModuleTest   reads p.grad_sample
  grad_samples: dp_rnn, embedding_bag       take PackedSequence or offsets (tensors of one sequence each: test_any_layer.py)
  grad_samples: batches of no example       ask for gradients of shape [0, ...], which are never formed
  batch_memory_manager, gradient_accumulation, mixed_precision     go backward from plain tensors, the first with a loss that
                            couples examples ([B] − [B,1]); the same claims are in test_privacy_engine.py and test_autocast.py
  grad_sample_module, grad_sample_hooks*    read p.grad_sample of Opacus' own classes
  privacy_engine_validation: *_ew, test_custom_linear_hooks, test_unsupported_hooks, test_extra_param_hooks_requires_grad
                            ask for marks of modes that stay Opacus' (ours takes those models: test_ghost_sums.py)
  randomness: DataLoaderSwitchRandomnessTest     of Opacus' switch_generator, on loaders that are not private
  adaclip, validators, module_validator, dp_layers, per_sample_gradients_utils, prv_accountant     of classes that stay Opacus'
  multi*, ddp_hook_check                    need two GPUs and NCCL
"""

import copy
import functools
import importlib
import sys
import unittest

import pytest
import torch
from hypothesis import HealthCheck, settings
from no_torchvision import torchvision_or_stand_ins
from private import AnyBatches
from torch.nn import functional

from ghostshard import PrivacyEngine, accountants
from ghostshard.ghost.loss import PrivateCriterion, PrivateLoss
from ghostshard.ghost.optimizer import GhostOptimizer
from ghostshard.ghost.provenance import NoProvenance
from ghostshard.ghost.wrappers import GhostModule
from ghostshard.loaders import GhostDataLoader, PoissonBatchSampler

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

# Decorated tests take the profile's settings while they are imported; elsewhere in this run nothing changes.
_BEFORE = settings.default
settings.register_profile("few", max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("few")


def suite(name: str):
    with torchvision_or_stand_ins():
        module = importlib.import_module(f"opacus.tests.{name}")
        return importlib.reload(module) if f"opacus.tests.{name}" in sys.modules else module


def ours(theirs: type, *left_out: str, **methods) -> type:
    """Their class with some tests of it left out."""
    missing = [name for name in left_out if not hasattr(theirs, name)]
    assert not missing, missing
    return type(f"Ours{theirs.__name__}", (theirs,), dict.fromkeys(left_out) | methods)


# Accountants ---------------------------------------------------------------------------------------------------------

_accountants = suite("accountants_test")
_THEIRS = {name: getattr(_accountants, name) for name in ("RDPAccountant", "PRVAccountant")}


class OpacusOrders(accountants.RDPAccountant):
    """Over Opacus' own orders, whose digits the suite asks for."""

    def get_epsilon(self, delta, alphas=None, **_):
        return super().get_epsilon(delta, self.DEFAULT_ALPHAS if alphas is None else alphas)


_accountants.RDPAccountant = OpacusOrders
_accountants.PRVAccountant = accountants.PRVAccountant
_accountants.get_noise_multiplier = functools.partial(accountants.get_noise_multiplier, accountant="rdp")  # its default
_CLASSES = {"rdp": accountants.RDPAccountant, "prv": accountants.PRVAccountant}
_create = _accountants.create_accountant
_accountants.create_accountant = lambda mechanism: _CLASSES[mechanism]() if mechanism in _CLASSES else _create(mechanism)

OursAccounting = ours(
    _accountants.AccountingTest, "test_prv_accountant", "test_gdp_accountant",
    "test_get_noise_multiplier_rdp_epochs", "test_get_noise_multiplier_rdp_steps", "test_get_noise_multiplier_prv_epochs",
    "test_get_noise_multiplier_prv_steps", "test_get_noise_multiplier_gdp",
)  # fmt: skip


@pytest.mark.parametrize("name", _THEIRS)
def test_their_case_is_never_more_here(name):
    theirs, mine = _THEIRS[name](), getattr(accountants, name)()
    theirs.history = mine.history = [(1.5, 0.04, 2250)]
    assert 6 < mine.get_epsilon(delta=1e-5) <= theirs.get_epsilon(delta=1e-5)


# Samplers and loaders ------------------------------------------------------------------------------------------------

_poisson = suite("poisson_test")
_poisson.UniformWithReplacementSampler = PoissonBatchSampler
OursPoisson = ours(_poisson.PoissonSamplingTest)

_distributed = suite("distributed_poisson_test")


def _two_ranks(self, seed=0):
    samplers = [
        PoissonBatchSampler(
            num_samples=len(self.dataset), sample_rate=self.batch_size / len(self.dataset), rank=rank,
            world_size=self.world_size, generator=torch.Generator().manual_seed(seed),
        )
        for rank in range(self.world_size)
    ]  # fmt: skip
    return samplers, [torch.utils.data.DataLoader(self.dataset, batch_sampler=s, collate_fn=_rows) for s in samplers]


def _rows(batch: list) -> tuple:
    return (torch.empty(len(batch), 10), None)


def _disjoint(self):
    first, second = ({i for batch in sampler for i in batch} for sampler in self.samplers)
    self.assertFalse(first & second)


OursDistributedPoisson = ours(_distributed.PoissonSamplingTest, _init_data=_two_ranks, test_separate_batches=_disjoint)

_loader = suite("dpdataloader_test")
_loader.DPDataLoader = GhostDataLoader
OursDataLoader = ours(_loader.DPDataLoaderTest, "test_collate_classes", "test_collate_tensor")

_randomness = suite("randomness_test")
_randomness.DPDataLoader = GhostDataLoader
OursDataLoaderRandomness = ours(_randomness.DataLoaderRandomnessTest, "test_global_seed")

# Schedulers and validation of models, through make_private -----------------------------------------------------------


class EngineUnderTest(PrivacyEngine):
    """Three values, as in the mode that the suites are written for."""

    def make_private(self, **arguments):
        module, optimizer, _, loader = super().make_private(**arguments | {"grad_sample_mode": "ghost"})
        return module, optimizer, loader


_noise_schedulers = suite("schedulers.noise_scheduler_test")
_clip_schedulers = suite("schedulers.grad_clip_scheduler_test")
_validation = suite("privacy_engine_validation_test")
for _module in (_noise_schedulers, _clip_schedulers, _validation):
    _module.PrivacyEngine = EngineUnderTest
OursNoiseScheduler = ours(_noise_schedulers.NoiseSchedulerTest)
OursClipScheduler = ours(_clip_schedulers.GradClipSchedulerTest)
OursValidation = ours(
    _validation.PrivacyEngineValidationTest, "test_supported_ew", "test_custom_linear_ew", "test_unsupported_ew",
    "test_extra_param_ew", "test_extra_param_disabled_ew", "test_custom_linear_hooks", "test_unsupported_hooks",
    "test_extra_param_hooks_requires_grad",
)  # fmt: skip

# Fast gradient clipping: their module, optimizer and loss are made one by one, ours meet in the loss ------------------


_released = {"as sums": False}


def _module_of(m, *, max_grad_norm=1.0, use_ghost_clipping=True, batch_first=True, loss_reduction="mean"):
    return GhostModule(m, batch_first=batch_first, loss_reduction=loss_reduction)


def _optimizer_of(optimizer, **arguments):
    return GhostOptimizer(optimizer, engine=None, **arguments)


def _loss_of(module, optimizer, criterion, loss_reduction="mean"):
    optimizer.engine = module.engine
    divisor = float(optimizer.expected_batch_size) if loss_reduction == "mean" and not _released["as sums"] else 1.0
    module.engine.set_constants(sampling_rate=0.1, divisor=divisor, terms=optimizer.terms, generator=None, batches=AnyBatches())
    return PrivateCriterion(module.engine, optimizer, criterion, loss_reduction)


_fast = suite("grad_sample_module_fast_gradient_clipping_test")
_fast.GradSampleModuleFastGradientClipping = _module_of
_fast.DPOptimizerFastGradientClipping = _optimizer_of
_fast.DPLossFastGradientClipping = _loss_of


class OursWeightUpdate(unittest.TestCase):
    setUp_data_sequantial = _fast.GradSampleModuleFastGradientClippingTest.setUp_data_sequantial
    test_weight_update = _fast.GradSampleModuleFastGradientClippingTest.test_weight_update_fast_gradient_clipping



def _sums(self):
    """It compares p.grad, which is divided by the expected batch, with a sum."""
    _released["as sums"] = True
    self.addCleanup(_released.update, {"as sums": False})


OursEmbedding = ours(
    _fast.GradSampleModuleFastGradientClippingEmbeddingLayerTest, "test_norm_calculation",
    "test_multidevice_get_norm_sample", "test_multidevice_get_clipping_coef", setUp=_sums,
)  # fmt: skip

class _MadeAsTheirs(type):
    """(module, optimizer, losses, reduction)."""

    def __call__(cls, engine, _optimizer, losses, loss_reduction="mean"):
        engine.provenance = NoProvenance()  # of a mock
        return PrivateLoss(engine, losses, loss_reduction)

    def __instancecheck__(cls, instance):
        return isinstance(instance, PrivateLoss)


class _LossOfTheirs(metaclass=_MadeAsTheirs):
    pass


_fast.DPTensorFastGradientClipping = _LossOfTheirs
OursArithmetic = ours(_fast.DPTensorArithmeticTest)


# Per-example gradients of layers -------------------------------------------------------------------------------------


def per_example_gradients(x, module, batch_first=True, loss_reduction="mean", grad_sample_mode="hooks"):
    """[B, ...] by name: B steps without noise, in each of which one example has a loss and nobody is clipped."""
    model = copy.deepcopy(module)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    private = GhostModule(model, batch_first=batch_first, loss_reduction=loss_reduction)
    engine = private.engine
    engine.set_constants(sampling_rate=0.1, divisor=1.0, terms=lambda: (1e6, 0.0), generator=None, batches=AnyBatches())
    units = x.shape[0 if batch_first else 1]
    found: dict[str, list] = {name: [] for name in names}
    for unit in range(units):
        y = private(x)
        y = y if batch_first else y.transpose(0, 1)
        losses = y.abs().flatten(1)  # their L1Loss against zeros
        losses = losses.mean(1) if loss_reduction == "mean" else losses.sum(1)
        engine.backward(losses * functional.one_hot(torch.tensor(unit), units))
        engine.release()
        for name in names:
            found[name].append(model.get_parameter(name).grad.clone())
    private.remove_hooks()
    return {name: torch.stack(values) for name, values in found.items()}


def _once(self, x, module, batch_first=True, atol=10e-6, rtol=10e-5, ew_compatible=True, chunk_method=iter):
    """Their run_test goes through Opacus' modes; ours is one."""
    if x.numel() == 0:
        return
    for reduction in ("sum", "mean"):
        self.run_test_with_reduction(
            x, module, batch_first=batch_first, loss_reduction=reduction, atol=atol, rtol=rtol, chunk_method=chunk_method
        )


_utils = importlib.import_module("opacus.utils.per_sample_gradients_utils")
_common = suite("grad_samples.common")
_common.compute_opacus_grad_sample = per_example_gradients


def _both(x, module, batch_first=True, loss_reduction="mean", grad_sample_mode="hooks", chunk_method=iter):
    slow = _utils.compute_microbatch_grad_sample(
        x, module, batch_first=batch_first, loss_reduction=loss_reduction, chunk_method=chunk_method
    )
    return slow, per_example_gradients(x, module, batch_first, loss_reduction)


_common.compute_grad_samples_microbatch_and_opacus = _both
_common.GradSampleHooks_test.run_test = _once

LAYERS = {
    "conv1d_test": "Conv1d_test", "conv2d_test": "Conv2d_test", "conv3d_test": "Conv3d_test", "linear_test": "Linear_test",
    "embedding_test": "Embedding_test", "layer_norm_test": "LayerNorm_test", "rms_norm_test": "RMSNorm_test",
    "group_norm_test": "GroupNorm_test", "instance_norm1d_test": "InstanceNorm1d_test",
    "instance_norm2d_test": "InstanceNorm2d_test", "instance_norm3d_test": "InstanceNorm3d_test",
    "sequence_bias_test": "SequenceBias_test", "dp_multihead_attention_test": "MultiHeadAttention_test",
}  # fmt: skip
for _name, _class in LAYERS.items():
    globals()[f"Ours{_class}"] = ours(getattr(suite(f"grad_samples.{_name}"), _class))

settings.register_profile("as_before", _BEFORE)
settings.load_profile("as_before")


def test_ours_were_put_in():
    assert _common.GradSampleHooks_test.run_test is _once
    assert globals()["OursConv2d_test"].run_test is _once
