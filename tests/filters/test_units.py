"""Durations and sizes: what is read, what is refused, what is written."""

from __future__ import annotations

import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.api import Config
from filters.units import Duration, Size, decode


class Limits(Config, frozen=True):
    """Settings of a filter that has both kinds of value."""

    ttl: Duration = Duration(300)
    most: Size = Size(65536)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250us", 0.00025),
        ("5ms", 0.005),
        ("300s", 300.0),
        ("0.25s", 0.25),
        ("10m", 600.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        ("0s", 0.0),
    ],
)
def test_a_duration_is_a_number_of_seconds(text: str, seconds: float) -> None:
    """Every unit is read as the seconds it stands for."""
    assert seconds == pytest.approx(Duration(text), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0B", 0),
        ("512B", 512),
        ("64KiB", 65536),
        ("1MiB", 1048576),
        ("1.5MiB", 1572864),
        ("2GiB", 2147483648),
        ("1TiB", 1099511627776),
    ],
)
def test_a_size_is_a_number_of_bytes(text: str, count: int) -> None:
    """Units are powers of 1,024."""
    assert count == Size(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ten",
        "10",
        "m",
        "-5m",
        "+5m",
        "10 m",
        "10M",
        "1h30m",
        "1e3s",
        ".5s",
        "5.s",
        "10m\n",
        "٣s",
        "9999999999999999s",
        "NaNs",
        "infs",
    ],
)
def test_a_duration_written_otherwise_is_refused(text: str) -> None:
    """The message shows what a duration looks like and what was found."""
    with pytest.raises(ValueError, match="expected a duration") as caught:
        Duration(text)
    assert f'expected a duration such as "10m", got "{text}"' == str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "64", "64KB", "64kib", "-1B", "64 KiB", "1,000B", "9999999999999999B"]
)
def test_a_size_written_otherwise_is_refused(text: str) -> None:
    """Decimal units are refused rather than taken for binary ones."""
    with pytest.raises(ValueError, match="expected a size") as caught:
        Size(text)
    assert f'expected a size such as "64KiB", got "{text}"' == str(caught.value)


@pytest.mark.parametrize("text", ["0s", "5ms", "250us", "90s", "10m", "25h", "2d", "1500ms"])
def test_a_duration_is_written_in_its_largest_whole_unit(text: str) -> None:
    """These are already written so."""
    assert text == str(Duration(text))


@pytest.mark.parametrize("text", ["0B", "1000B", "64KiB", "1025KiB", "1MiB", "1TiB"])
def test_a_size_is_written_in_its_largest_whole_unit(text: str) -> None:
    """These are already written so."""
    assert text == str(Size(text))


@given(
    st.integers(min_value=0, max_value=999_999_999_999),
    st.sampled_from(["us", "ms", "s", "m", "h", "d"]),
)
def test_what_a_duration_writes_it_reads_back(number: int, unit: str) -> None:
    """Up to what a float can hold."""
    duration = Duration(f"{number}{unit}")
    assert duration == pytest.approx(Duration(str(duration)), rel=1e-9)


@given(st.integers(min_value=0, max_value=999_999_999_999_999))
def test_what_a_size_writes_it_reads_back(count: int) -> None:
    """Exactly, as sizes are whole numbers."""
    assert count == Size(str(Size(count)))


def test_a_config_holds_both_as_plain_numbers() -> None:
    """A filter reckons with its settings without unpacking them."""
    limits = msgspec.convert({"ttl": "10m", "most": "1KiB"}, Limits, dec_hook=decode)
    assert Limits(ttl=Duration(600), most=Size(1024)) == limits
    assert Duration(601) == limits.ttl + 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"ttl": "ten"}, 'expected a duration such as "10m", got "ten" - at `$.ttl`'),
        ({"ttl": 300}, 'expected a duration such as "10m", got 300 - at `$.ttl`'),
        ({"most": True}, 'expected a size such as "64KiB", got True - at `$.most`'),
    ],
)
def test_a_bare_number_is_no_duration_and_no_size(value: object, message: str) -> None:
    """A value without its unit is refused, whichever unit it may have meant."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Limits, dec_hook=decode)
    assert message == str(caught.value)


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_any_duration_can_be_written_and_read_back(seconds: float) -> None:
    """To the billionth of it, whatever arithmetic it came from."""
    assert seconds == pytest.approx(Duration(str(Duration(seconds))), rel=1e-9)


def test_both_survive_a_copy() -> None:
    """Settings are copied by tools that show them."""
    limits = Limits(ttl=Duration("90s"), most=Size("1KiB"))
    assert limits == copy.deepcopy(limits)
    assert str(copy.deepcopy(limits).ttl) == "90s"
