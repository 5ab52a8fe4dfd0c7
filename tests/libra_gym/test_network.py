"""The network's input is standardised by the moments of its bank."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from libra_gym.network import moments


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
