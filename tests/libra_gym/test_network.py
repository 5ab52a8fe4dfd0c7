"""The Q network: its input is standardised by the moments of its bank, and one step is as good as one of many."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from libra_gym.network import NetworkSettings, ScaleNetwork, moments


@given(rows=st.integers(2, 200), block=st.integers(1, 250), offset=st.sampled_from([0.0, 1e3]))
def test_moments_in_blocks_are_those_of_the_whole(rows: int, block: int, offset: float) -> None:
    features = (
        torch.rand(rows, 3, generator=torch.Generator().manual_seed(rows)) * torch.tensor([1.0, 10.0, 0.1]) + offset
    )
    mean, deviation = moments(features, block)
    torch.testing.assert_close(mean, features.double().mean(0).float())
    torch.testing.assert_close(deviation, features.double().std(0).float(), rtol=1e-3, atol=1e-5)


def test_half_precision_is_summed_in_single() -> None:
    mean, deviation = moments(torch.full((70_000, 2), 3.0, dtype=torch.float16), block=10_000)
    assert mean.tolist() == [3.0, 3.0]
    assert deviation.tolist() == [0.0, 0.0]
    assert mean.dtype == deviation.dtype == torch.float32


def test_a_bank_of_one_block_has_torchs_own_moments() -> None:
    features = torch.randn(1000, 4)
    deviation, mean = torch.std_mean(features, dim=0)
    for own, theirs in zip(moments(features), (mean, deviation), strict=True):
        assert own.tolist() == pytest.approx(theirs.tolist(), abs=0)


@pytest.mark.parametrize("dueling", [False, True])
def test_one_step_at_once_has_the_values_and_gradients_of_embedding_first(dueling: bool) -> None:
    torch.manual_seed(0)
    network = ScaleNetwork(NetworkSettings(channels=6, hidden=(16, 16), init_std=None, dueling=dueling))
    network.normalise(torch.randn(6), torch.rand(6) + 0.5)
    features, weights = torch.randn(5, 6), torch.rand(5, 8)
    gradients = []
    for values in (network(features, weights), network.q(network.embed(features), weights)):
        network.zero_grad()
        values.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in network.parameters()])
        assert values.shape == (5, 9)
    torch.testing.assert_close(network(features, weights), network.q(network.embed(features), weights))
    for at_once, embedded in zip(*gradients):
        torch.testing.assert_close(at_once, embedded, rtol=1e-4, atol=1e-3)
