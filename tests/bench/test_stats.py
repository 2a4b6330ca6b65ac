"""Percentiles, against the plainest way there is to find them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envhive.bench.stats import max_batch, median, percentile, summarise

durations = st.lists(st.floats(0, 1e4, allow_nan=False), min_size=1, max_size=200)


def by_counting(values: list[float], share: float) -> float:
    """The smallest value that at least `share` percent of all are not above."""
    return min(value for value in values if 100 * sum(other <= value for other in values) >= share * len(values))


@given(durations, st.integers(0, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[float], share: int) -> None:
    assert percentile(sorted(values), share) == by_counting(values, share)


@given(st.integers(1, 3000))
def test_floating_point_does_not_push_a_percentile_to_the_next_rank(count: int) -> None:
    ordered = [float(number) for number in range(1, count + 1)]
    assert percentile(ordered, 99.9) == -(-999 * count // 1000)


@given(durations)
def test_a_summary_is_in_order_and_within_what_was_measured(values: list[float]) -> None:
    found = summarise(values)
    assert found.count == len(values)
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= found.p999 <= found.largest == max(values)
    assert min(values) - 1e-9 <= found.mean <= max(values) * (1 + 1e-12)
    assert len(found.quantiles) == 101
    assert found.quantiles == sorted(found.quantiles)


def test_a_summary_of_nothing_is_empty() -> None:
    assert summarise([]).count == 0


@pytest.mark.parametrize("share", [-1, 100.1])
def test_a_percentile_beyond_the_scale_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1.0], share)


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 50)


@given(durations)
def test_half_lies_on_either_side_of_the_median(values: list[float]) -> None:
    middle = median(values)
    assert 2 * sum(value <= middle for value in values) >= len(values)
    assert 2 * sum(value >= middle for value in values) >= len(values)


def test_the_max_batch_held_in_every_repetition() -> None:
    assert max_batch({32: [1.0, 1.0], 64: [1.0, 0.949], 128: [0.95, 0.96]}) == 128
    assert max_batch({32: [0.5]}) == 0
    assert max_batch({32: []}) == 0
    assert max_batch({}) == 0
