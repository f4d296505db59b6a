"""ghostshard.optim in one process: each rule beside its float64 twin, its bytes, states, schedules, and what a PrivacyEngine tells it."""

import copy
import io

import optim_twins as twins
import pytest
import torch
from private import hand_out
from private_run import Run
from torch import nn

from ghostshard._native import load
from ghostshard.optim import SOAP, AdamW, AdamW8bit, Muon, Shampoo, matrix_groups, shampoo
from ghostshard.optim.orthogonalised import orthogonalised

LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.99), 1e-8, 0.1
VARIANCES = {"unknown": [0.0] * 6, "known": [0.01] * 6, "changing": [0.01, 0.02, 0.005, 0.0, 0.03, 0.01], "late": [0.0, 0.0, 0.01, 0.01, 0.02, 0.01]}
# Of a step, which is at most 1/sqrt(least) times LR: some ten roundings of 2^-24 each to a moment, of which the corrected one may be as
# small as 1/20 of its two parts here, and as many to a weight below 4.
TOLERANCE = 2e-6


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(7)))


def take_steps(optimizer, steps, variance: float = 0.0) -> None:
    for step in steps:
        for number, each in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            each.grad = twins.gradient(each, number, step).to(each.dtype)
        optimizer.set_error_variance(variance)
        optimizer.step()


def moments(optimizer, number: int = 0) -> dict:
    return {name: value.double() for name, value in optimizer.state_dict()["state"][number].items()}


# The rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [None, 0.5], ids=["plain", "floor"])
@pytest.mark.parametrize("variances", VARIANCES.values(), ids=VARIANCES)
def test_adamw_is_its_float64_twin(variances, floor):
    p = parameter(20, 30)
    optimizer = AdamW([p], LR, BETAS, EPS, DECAY, second_moment_floor=floor)
    weights, first, second = p.detach().double(), 0.0, 0.0
    for step, variance in enumerate(variances, start=1):
        used = variances[:step] if floor else [0.0] * step
        take_steps(optimizer, [step], variance)
        weights, first, second = twins.adamw_step(
            weights, twins.gradient(p, 0, step).double(), first, second, twins.average_variance(used, BETAS[1]), step=step, lr=LR,
            betas=BETAS, eps=EPS, weight_decay=DECAY, variance=used[-1], least=floor or 0, subtract=floor is not None,
        )  # fmt: skip
    assert (p - weights).abs().max() < TOLERANCE
    assert (moments(optimizer)["exp_avg_sq"] - second).abs().max() < 1e-8


def test_adamw_without_a_floor_takes_torchs_steps_whatever_the_noise():
    ours, theirs = parameter(20, 30), parameter(20, 30)
    take_steps(AdamW([ours], LR, BETAS, EPS, DECAY), range(5), variance=0.3)
    other = torch.optim.AdamW([theirs], LR, BETAS, EPS, DECAY)
    for step in range(5):
        theirs.grad = twins.gradient(theirs, 0, step)
        other.step()
    assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("floor", [None, 0.5], ids=["plain", "floor"])
@pytest.mark.parametrize("variances", VARIANCES.values(), ids=VARIANCES)
def test_adamw8bit_is_its_twin_from_the_moments_that_it_had(variances, floor):
    """Each step in float64 from the decoded moments before it: weights to float32's roundings, moments to half a code step."""
    p = parameter(40, 128)
    optimizer = AdamW8bit([p], LR, BETAS, EPS, DECAY, second_moment_floor=floor)
    before = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
    for step, variance in enumerate(variances, start=1):
        weights, known = p.detach().double(), twins.average_variance(variances[:step], BETAS[1])
        if step > 1 and known > 0 and not any(variances[: step - 1]):  # the second moment has a sign from here on
            before["exp_avg_sq"] = recoded(before["exp_avg_sq"])
        take_steps(optimizer, [step], variance)
        weights, first, second = twins.adamw_step(
            weights, twins.gradient(p, 0, step).double(), before["exp_avg"], before["exp_avg_sq"], known, step=step, lr=LR, betas=BETAS,
            eps=EPS, weight_decay=DECAY, variance=variance, least=floor or 1 / 64, subtract=floor is not None,
        )  # fmt: skip
        assert (p - weights).abs().max() < TOLERANCE, step
        before = moments(optimizer)
        assert before["noise_variance"].item() == pytest.approx(known, rel=1e-12)
        # Half the distance of codes in the top decade, of the stretch's largest (kernels/quantised_moments.h).
        for kept, exact, half in ((before["exp_avg"], first, 0.0071), (before["exp_avg_sq"], second, 0.0071 if known else 0.0036)):
            largest = exact.abs().view(-1, 256).amax(1, keepdim=True)
            assert ((kept - exact).view(-1, 256).abs() / largest).max() < half, step


def recoded(values: torch.Tensor) -> torch.Tensor:
    engine = load("engine")
    return engine.decode_moments(*engine.encode_moments(values.float().view(-1), True), True).view(values.shape).double()


@pytest.mark.parametrize("shape", [(64, 64), (96, 40), (150, 400), (3, 30, 50), (1, 7), (2, 259, 261)], ids=str)
def test_orthogonalised_is_its_float64_twin(shape):
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    expected = twins.orthogonalised(matrix.double())
    # As the C++ test's (tests/fsdp/muon_test.cpp).
    assert (orthogonalised(matrix) - expected).norm() <= 5e-6 * expected.norm()
    assert (orthogonalised(matrix.double()) - expected).norm() <= 1e-10 * expected.norm()


def test_small_singular_values_are_right_beside_a_large_signal():
    make = torch.Generator().manual_seed(1)
    signal = 10 * torch.randn(160, 2, generator=make) @ torch.randn(2, 200, generator=make)
    matrix = torch.randn(160, 200, generator=make) + signal
    expected = twins.orthogonalised(matrix.double())
    assert (orthogonalised(matrix) - expected).norm() <= 1e-5 * expected.norm()
    assert (orthogonalised(matrix, 7.5) - 7.5 * expected).norm() <= 1e-5 * 7.5 * expected.norm()


def test_orthogonalised_zeros_are_zeros_and_nan_is_nan():
    for rows, columns in ((4, 6), (4, 60), (260, 261)):
        matrix = torch.zeros(rows, columns)
        assert orthogonalised(matrix).count_nonzero() == 0
        matrix[1, 2] = float("nan")
        assert orthogonalised(matrix).isnan().all()


@pytest.mark.parametrize("shape, pieces", [((24, 40), None), ((40, 24), None), ((72, 24), (0, 3)), ((24, 72), (1, 3)), ((1, 7), None)])
def test_muon_is_its_float64_twin(shape, pieces):
    p = parameter(*shape)
    optimizer = Muon([p], LR, DECAY, 0.9, pieces=pieces)
    weights, momentum = p.detach().double(), 0.0
    for step in range(1, 5):
        take_steps(optimizer, [step])
        weights, momentum = twins.muon_step(
            weights, twins.gradient(p, 0, step).double(), momentum, lr=LR, weight_decay=DECAY, share=0.9, pieces=pieces or (0, 1)
        )
    # Roundings of 2^-24 count at most 34 times in a step of about LR (fsdp/optimizer/orthogonalised.h).
    assert (p - weights).abs().max() < 1e-5
    assert optimizer.state_dict()["state"][0].keys() == {"momentum_buffer"}


def test_muon_leaves_vectors_and_groups_that_say_so_to_adamw():
    shapes = [(12, 8), (8,), (10, 8), (3, 2, 2)]
    ours = [parameter(*shape) for shape in shapes]
    theirs = [parameter(*shape) for shape in shapes]
    muon = Muon([{"params": ours[:2]}, {"params": ours[2:], "matrices": False}], LR, DECAY, betas=BETAS)
    take_steps(muon, range(4))
    take_steps(AdamW(theirs, LR, BETAS, EPS, DECAY), range(4))
    assert [torch.equal(a, b) for a, b in zip(ours, theirs)] == [False, True, True, True]


@pytest.mark.parametrize("variance", [0.0, 0.005])
@pytest.mark.parametrize("kind", [Shampoo, SOAP])
def test_tiles_follow_their_float64_twins(kind, variance):
    p = parameter(12, 18)
    options = {"side": 6, "refresh_every": 2, "factor_beta": 0.9}
    optimizer = kind([p], LR, BETAS, EPS, DECAY, **options)
    weights = p.detach().double()
    tiles = {(i, j): twins.Tile((6, 6)) for i in (0, 6) for j in (0, 6, 12)}
    for step in range(1, 7):
        gradient = twins.gradient(p, 0, step).double()
        take_steps(optimizer, [step], variance * step)
        moved = torch.empty_like(weights)
        for (i, j), tile in tiles.items():
            rule = tile.shampoo if kind is Shampoo else tile.soap
            moved[i : i + 6, j : j + 6] = rule(gradient[i : i + 6, j : j + 6], variance * step)
        weights = weights * (1 - LR * DECAY) - LR * moved
    # Eigenvalues of a tile's factor lie within some thousands of each other: a rounding of 2^-24 counts so much more in a step of LR.
    assert (p - weights).abs().max() < 1e-5


def test_of_noise_alone_shampoo_takes_the_direction_of_the_momentum():
    """Roots are multiples of the identity where all eigenvalues lie below the noise's upper edge."""
    p, noise = parameter(32, 32), 0.1
    optimizer = Shampoo([p], LR, weight_decay=0.0, side=32, refresh_every=1, factor_beta=0.99)
    for step in range(60):
        before = p.detach().clone()
        take_steps(optimizer, [step], noise**2)
    tiles = optimizer.state[p]["shampoo_tiles"]
    momentum = tiles[: 32 * 32].view(32, 32)
    told = torch.cosine_similarity((before - p).flatten(), momentum.flatten(), dim=0)
    assert told > 0.99
    other = Shampoo([parameter(32, 32)], LR, weight_decay=0.0, side=32, refresh_every=1, factor_beta=0.99)
    take_steps(other, range(2))
    root = other.state[other.param_groups[0]["params"][0]]["shampoo_tiles"][4 * 32 * 32 : 5 * 32 * 32].view(32, 32)
    assert (root - root.trace() / 32 * torch.eye(32)).norm() > 0.1 * root.norm(), "without a known variance they are not"


def test_tiles_at_the_ends_are_smaller_and_their_states_are_counted():
    p = parameter(70, 40)
    optimizer = Shampoo([p], LR, side=32)
    take_steps(optimizer, [0])
    numbers = sum(2 * (r * c + r * r + c * c) for r in (32, 32, 6) for c in (32, 8))
    assert optimizer.state_bytes() == 4 * numbers + 4 + 8
    with pytest.raises(ValueError, match=rf"tiles of side 16 of a matrix \(70, 40\) have \d+ numbers, got .*{numbers}"):
        state = optimizer.state_dict()
        state["param_groups"][0]["side"] = 16
        Shampoo([p], LR).load_state_dict(state)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11, bias=False)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)


def test_groups_of_a_model():
    model = Model()
    groups = matrix_groups(model, adamw=lambda name, _: name == "head.weight", pieces=lambda name, _: (0, 3) if "qkv" in name else None)
    found = {(group["matrices"], group["pieces"]): group["params"] for group in groups}
    assert found.keys() == {(False, None), (True, (0, 3))}
    assert list(map(id, found[True, (0, 3)])) == [id(model.qkv.weight)]
    assert set(map(id, found[False, None])) == {id(model.table.weight), id(model.qkv.bias), id(model.head.weight)}
    (other,) = (group for group in matrix_groups(model) if group["matrices"])
    assert {id(p) for p in other["params"]} == {id(model.qkv.weight), id(model.head.weight)}
    model.get_output_embeddings = lambda: model.head  # as Hugging Face's models name it
    (other,) = (group for group in matrix_groups(model) if group["matrices"])
    assert {id(p) for p in other["params"]} == {id(model.qkv.weight)}


# States --------------------------------------------------------------------------------------------------

def test_a_variance_is_finite_and_not_negative():
    for wrong in (-1e-3, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="the error variance must be finite and >= 0"):
            AdamW([parameter(2)]).set_error_variance(wrong)


def test_8bit_moments_take_2_07_bytes_a_parameter():
    optimizer = AdamW8bit([parameter(512, 512), parameter(512)])
    take_steps(optimizer, [0])
    exactly = 2 * (512 * 512 + 4 * 512 * 2) + 8 * 512 + 2 * (4 + 8)  # codes and scales; the vector in float32; step and variance
    assert optimizer.state_bytes() == exactly
    assert exactly / (512 * 512 + 512) < 2.07


KINDS = {
    "adamw": lambda p: AdamW(p, LR, second_moment_floor=0.5),
    "adamw8bit": lambda p: AdamW8bit(p, LR),
    "muon": lambda p: Muon(p, LR),
    "shampoo": lambda p: Shampoo(p, LR, side=32, refresh_every=2),
    "soap": lambda p: SOAP(p, LR, side=32, refresh_every=2),
} | {f"{kind.__name__}_rounded": lambda p, kind=kind: kind(p, LR, stochastic_rounding=True) for kind in (Muon, Shampoo, SOAP)}


def some_parameters(dtype=torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(parameter(*shape).detach().to(dtype)) for shape in ((70, 64), (64,), (9, 5))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variance", [0.0, 0.01])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_state_that_was_saved_goes_on_to_the_bit(make, variance, dtype):
    there, here = some_parameters(dtype), some_parameters(dtype)
    optimizer = make(there)
    take_steps(optimizer, range(3), variance)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = make(here)
    again.load_state_dict(torch.load(file))
    for mine, other in zip(here, there):
        mine.data.copy_(other.data)
    copied = copy.deepcopy((there, optimizer))
    for each in (optimizer, again, copied[1]):
        take_steps(each, range(3, 5), variance)
    assert all(torch.equal(mine, other) for mine, other in zip(here, there))
    assert all(torch.equal(mine, other) for mine, other in zip(copied[0], there))
    assert again.state_bytes() == optimizer.state_bytes()


@pytest.mark.parametrize("make", [Shampoo, SOAP])
def test_matrices_are_dealt_out_once_for_all_of_their_states(make, monkeypatch):
    dealt = []
    monkeypatch.setattr(shampoo, "owners_of", lambda matrices: dealt.append(len(matrices)) or {})
    optimizer = make([parameter(6, 5) for _ in range(7)], LR, side=4)
    take_steps(optimizer, range(1))
    saved = optimizer.state_dict()
    assert dealt == [7]
    optimizer.load_state_dict(saved)
    assert dealt == [7, 7]


def test_8bit_moments_go_on_from_torchs_adamw():
    theirs, ours = parameter(70, 64), parameter(70, 64)
    before = torch.optim.AdamW([theirs], LR, weight_decay=0.0)
    for step in range(3):
        theirs.grad = twins.gradient(theirs, 0, step)
        before.step()
    optimizer = AdamW8bit([ours])
    optimizer.load_state_dict(before.state_dict())
    ours.data.copy_(theirs.data)
    take_steps(optimizer, [3])
    theirs.grad = twins.gradient(theirs, 0, 3)
    before.step()
    assert optimizer.param_groups[0]["least_coded"] == 4096 and optimizer.state_dict()["state"][0]["step"] == 4
    assert 0 < (ours - theirs).abs().max() < 0.5 * LR  # codes are off by less than a hundredth of a stretch's largest


def test_states_that_are_not_the_optimizers_are_sentences():
    optimizer, other = AdamW([parameter(4, 3)]), Muon([parameter(4, 3)])
    for each in (optimizer, other):
        take_steps(each, [0])
    with pytest.raises(ValueError, match=r"the state of parameter 0 \(4, 3\) has no 'exp_avg': it is not one of AdamW, it has"):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"a state of shape \(3, 4\) is not one of a parameter of shape \(4, 3\)"):
        state = optimizer.state_dict()
        state["state"][0]["exp_avg"] = torch.zeros(3, 4)
        optimizer.load_state_dict(state)
    assert optimizer.state_dict()["state"][0]["step"] == 1, "nothing was taken"
    amsgrad = torch.optim.AdamW([parameter(4, 3)], amsgrad=True)
    with pytest.raises(ValueError, match="amsgrad is not an option of AdamW8bit"):
        AdamW8bit([parameter(4, 3)]).load_state_dict(amsgrad.state_dict())


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_schedules_change_the_rate_and_a_rate_of_0_moves_no_weight(make):
    parameters = some_parameters()
    optimizer = make(parameters)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: [0.0, 1.0, 0.5][min(step, 2)])
    moved = []
    for _ in range(3):
        before = [p.detach().clone() for p in parameters]
        take_steps(optimizer, [0])  # the same gradient again: moments settle, and a step is about its rate
        moved.append(max((p - b).abs().max().item() for p, b in zip(parameters, before)))
        schedule.step()
    assert moved[0] == 0 and moved[1] > 1.5 * moved[2] > 0
    assert optimizer.state_dict()["state"][0], "moments move from the first step on"


def test_groups_have_their_own_rate():
    slow, fast = parameter(70, 64), parameter(70, 64)
    optimizer = AdamW8bit([{"params": [slow], "lr": 0.0}, {"params": [fast]}], LR)
    take_steps(optimizer, [0])
    assert torch.equal(slow, parameter(70, 64)) and not torch.equal(fast, parameter(70, 64))


def test_a_write_behind_autograds_back_is_seen():
    p = parameter(3, 3)
    loss = (p * p).sum()
    take_steps(AdamW([p]), [0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# Under a PrivacyEngine -----------------------------------------------------------------------------------------------


class Coded(AdamW8bit):
    def __init__(self, params, lr):
        super().__init__(params, lr, least_coded=0)


class Watched(AdamW8bit):
    def step(self, closure=None):
        self.told = self._error_variance
        return super().step(closure)


def private(kind, **options) -> Run:
    run = Run(**options)
    run.inner = run.optimizer.original_optimizer = kind(run.model.parameters(), LR)
    return run


def test_the_noises_variance_is_told_before_every_step():
    run = private(Watched, noise=2.0)
    for step, (x, y) in zip(range(3), run.loader):
        run.optimizer.max_grad_norm, run.optimizer.noise_multiplier = 0.1 + step, 2.0 + step
        run.step(x, y)
        assert run.inner.told == pytest.approx(((2.0 + step) * (0.1 + step) / 8) ** 2, rel=1e-12)


def test_a_released_gradient_of_nobody_has_that_variance():
    run = private(Watched, noise=2.0, model=nn.Linear(300, 200))
    hand_out(run.loader, 0)
    run.backward(torch.ones(0, 300), torch.zeros(0, dtype=torch.long))
    run.optimizer.step()
    # Of the mean of n squares of normal numbers: six deviations, sqrt(2/n).
    assert abs(run.model.weight.grad.square().mean().item() / run.inner.told - 1) < 6 * (2 / 60000) ** 0.5


def test_a_clip_norm_that_adapts_leaves_less_noise_to_gradients():
    run = private(Watched, noise=1.0, clipping="adaptive", unclipped_num_std=1.0)
    x, y = next(iter(run.loader))
    run.step(x, y)
    assert run.inner.told == pytest.approx((0.1 / 8) ** 2 / (1 - 1 / 4), rel=1e-9)  # 1/s² = 1/g² + 1/(2·1)²


def test_without_noise_there_is_no_variance():
    run = private(Watched, noise=0.0)
    x, y = next(iter(run.loader))
    run.step(x, y)
    assert run.inner.told == 0.0


@pytest.mark.parametrize("kind", [AdamW, AdamW8bit, Muon])
def test_nothing_moves_before_a_release_and_parameters_from_elsewhere_are_refused(kind):
    run = private(kind)
    before = [p.detach().clone() for p in run.model.parameters()]
    draws = iter(run.loader)
    x, y = next(draws)
    run.backward(x, y)
    run.inner.step()
    assert all(torch.equal(p, b) for p, b in zip(run.model.parameters(), before))
    run.optimizer.step()
    assert not any(torch.equal(p, b) for p, b in zip(run.model.parameters(), before))
    run.inner.add_param_group({"params": [parameter(2, 3)]})
    x, y = next(draws)
    with pytest.raises(ValueError, match=r"the optimizer has a parameter of shape \(2, 3\) that was not in the model"):
        run.step(x, y)


@pytest.mark.parametrize("kind", [Coded, Muon])
def test_an_engines_checkpoint_holds_the_state(kind, tmp_path):
    run, again = private(kind, model=nn.Linear(6, 43)), private(kind, model=nn.Linear(6, 43))
    x, y = next(iter(run.loader))
    run.step(x, y)
    run.engine.save_checkpoint(path=tmp_path / "step1", module=run.module, optimizer=run.optimizer)
    again.engine.load_checkpoint(path=tmp_path / "step1", module=again.module, optimizer=again.optimizer)
    for number, state in run.inner.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, again.inner.state_dict()["state"][number][name]), name
