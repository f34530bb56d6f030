"""How long a filter may work on an exchange."""

import pytest

from filters.deadline import Deadline
from filters.errors import PortError
from tests.fakes import FakeClock


def test_what_is_left_goes_down_with_the_time() -> None:
    """Whatever it was spent on."""
    clock = FakeClock()
    deadline = Deadline(clock, 2.0)
    assert 2.0 == deadline.left_s()
    clock.advance(1.5)
    assert 0.5 == deadline.left_s()


@pytest.mark.parametrize("late_s", [2.0, 3.0])
def test_nothing_is_begun_when_the_time_is_over(late_s: float) -> None:
    """A port that was asked for no seconds would fail in a way of its own."""
    clock = FakeClock()
    deadline = Deadline(clock, 2.0)
    clock.advance(late_s)
    with pytest.raises(PortError, match="no time left"):
        deadline.left_s()
