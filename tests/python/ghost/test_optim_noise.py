"""ghostshard.optim.Muon on gradients whose noise has a known variance."""

import optim_twins as twins
import pytest
import torch
from torch import nn

from ghostshard.optim import SOAP, AdamW, AdamW8bit, Muon, Shampoo
from ghostshard.optim.above_noise import orthogonalised_above

LR, DECAY, SHARE = 0.01, 0.1, 0.9


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("noise", ["drop", "correct"])
def test_muon_knows_the_variance_of_what_it_orthogonalises(noise, nesterov):
    """Variances that change, beside a float64 twin that has each gradient's weight."""
    p = nn.Parameter(torch.randn(24, 40, generator=torch.Generator().manual_seed(1)))
    optimizer = Muon([p], LR, DECAY, SHARE, nesterov, noise=noise)
    weights, gradients, variances, dropped = p.detach().double(), [], [], 0
    for step in range(5):
        gradients.append(twins.gradient(p, 0, step).double())
        variances.append(gradients[-1].square().mean().item() * (0.02 + 0.01 * step))
        p.grad = gradients[-1].float()
        optimizer.set_error_variance(variances[-1])
        optimizer.step()
        shares = [(1 - SHARE) * SHARE ** (step - i) for i in range(step + 1)]
        if nesterov:
            shares = [SHARE * share + (1 - SHARE) * (i == step) for i, share in enumerate(shares)]
        u = sum(share * gradient for share, gradient in zip(shares, gradients))
        variance = sum(share**2 * each for share, each in zip(shares, variances))
        moved = orthogonalised_above(u.unsqueeze(0), variance, corrected=noise == "correct")[0]
        dropped += int((torch.linalg.svdvals(moved) < 0.5).sum())
        weights = weights * (1 - LR * DECAY) - LR * 0.2 * 40**0.5 * moved
    assert (p - weights).norm() < 1e-5 * weights.norm()
    assert 0 < dropped < 5 * 24


def test_of_noise_alone_nothing_is_left():
    noise = torch.randn(20, 30, 50, generator=torch.Generator().manual_seed(2))
    left = orthogonalised_above(noise, 1.0, corrected=True).flatten(1).norm(dim=1)
    assert (left > 0).sum() <= 20 / 8, "the bound of Davidson and Szarek"
    assert (orthogonalised_above(noise, 0.5, corrected=False).flatten(1).norm(dim=1) > 0).all()


def test_a_state_goes_on_to_the_bit():
    def run(*parts: range) -> torch.Tensor:
        p = nn.Parameter(torch.ones(12, 8))
        state = None
        for steps in parts:
            optimizer = Muon([p], LR, noise="drop")
            if state is not None:
                optimizer.load_state_dict(state)
            for step in steps:
                p.grad = twins.gradient(p, 0, step)
                optimizer.set_error_variance(1e-4)
                optimizer.step()
            state = optimizer.state_dict()
        return p.detach()

    assert torch.equal(run(range(6)), run(range(3), range(3, 6)))


def test_other_words_are_a_sentence():
    with pytest.raises(ValueError, match="noise must be keep, drop or correct, got 'none'"):
        Muon([nn.Parameter(torch.ones(3, 3))], noise="none")


COUNTS_ON_INDEPENDENCE = {
    "drop": (Muon, {"noise": "drop"}, r"noise must be left out with correlated noise \(noise_bands, noise_chain\), got 'drop'"),
    "correct": (Muon, {"noise": "correct"}, "noise must be left out with correlated noise"),
    **{kind.__name__: (kind, {"second_moment_floor": 0.5}, "second_moment_floor must be left out with correlated noise .*, got 0.5")
       for kind in (AdamW, AdamW8bit, Muon, Shampoo, SOAP)},
}  # fmt: skip


@pytest.mark.parametrize("kind, options, sentence", COUNTS_ON_INDEPENDENCE.values(), ids=COUNTS_ON_INDEPENDENCE)
def test_correlated_noise_is_refused_by_what_counts_on_independent_noise(kind, options, sentence):
    other = nn.Parameter(torch.ones(3))
    optimizer = kind([{"params": [nn.Parameter(torch.ones(3, 3))]}, {"params": [other], **options}])  # one group that has it is enough
    optimizer.set_error_variance(0.1)
    with pytest.raises(ValueError, match=sentence):
        optimizer.set_error_variance(0.2, correlated=True)
    plain = kind([other])
    plain.set_error_variance(0.2, correlated=True)
    assert plain._error_variance == 0.2 and optimizer._error_variance == 0.1
