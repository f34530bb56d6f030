"""Reading the client's `Cache-Control`."""

import pytest

from filters.cache_control import Directives, parse

FOR_EVER = 2**31


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Directives()),
        ("no-cache", Directives(no_cache=True)),
        ("No-Store", Directives(no_store=True)),
        ("ONLY-IF-CACHED", Directives(only_if_cached=True)),
        ("max-age=60", Directives(max_age_s=60)),
        ('max-age="60"', Directives(max_age_s=60)),
        ("max-age = 60 , no-cache", Directives(no_cache=True, max_age_s=60)),
        ("max-age=0", Directives(max_age_s=0)),
        ("min-fresh=30", Directives(min_fresh_s=30)),
        (",,;=,no-transform,only-if-cached", Directives(only_if_cached=True)),
    ],
)
def test_known_directives_are_read_and_others_ignored(header: str, expected: Directives) -> None:
    """Names know no case, and values may be quoted."""
    assert expected == parse(header)


@pytest.mark.parametrize("value", ["-1", "soon", "٣", "1 2", "1.5", '"1', ""])
def test_a_limit_that_is_no_number_of_seconds_allows_nothing(value: str) -> None:
    """RFC 9111, 4.2.1: what cannot be read is considered stale."""
    assert Directives(max_age_s=0) == parse(f"max-age={value}")
    assert Directives(min_fresh_s=FOR_EVER) == parse(f"min-fresh={value}")


@pytest.mark.parametrize("header", ["max-age", "max-age, no-transform"])
def test_a_limit_without_a_number_allows_nothing(header: str) -> None:
    """It limits, by how much nobody knows."""
    assert Directives(max_age_s=0) == parse(header)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2147483648", FOR_EVER),
        ("2147483649", FOR_EVER),
        ("9" * 10_000, FOR_EVER),
        ("0" * 10_000 + "7", 7),
    ],
)
def test_a_number_that_is_too_large_is_the_largest(value: str, seconds: int) -> None:
    """RFC 9111, 1.2.2: 2^31."""
    assert Directives(max_age_s=seconds) == parse(f"max-age={value}")


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("max-age=9, max-age=3", Directives(max_age_s=3)),
        ("max-age=3, max-age=9", Directives(max_age_s=3)),
        ("min-fresh=3,min-fresh=9", Directives(min_fresh_s=9)),
        ("max-age=3, max-age=soon", Directives(max_age_s=0)),
    ],
)
def test_of_a_directive_that_comes_twice_the_stricter_counts(
    header: str, expected: Directives
) -> None:
    """Several headers are one to the proxy, joined by commas."""
    assert expected == parse(header)


@pytest.mark.parametrize("header", ['x="a, no-store", b', 'x="no-store', '"no-store"', "=no-store"])
def test_what_stands_in_quotes_or_without_a_name_is_no_directive(header: str) -> None:
    """A comma in a quoted string parts nothing."""
    assert Directives() == parse(header)


def test_max_stale_asks_for_nothing_that_is_kept() -> None:
    """Stale answers are not kept, so that none can be given."""
    assert Directives() == parse("max-stale") == parse("max-stale=60")


@pytest.mark.parametrize(
    ("header", "age_s", "left_s", "allowed"),
    [
        ("", 299.0, 1.0, True),
        ("max-age=5", 5.0, 1.0, True),
        ("max-age=5", 5.1, 1.0, False),
        ("max-age=0", 0.1, 299.0, False),
        ("min-fresh=10", 1.0, 10.0, True),
        ("min-fresh=10", 1.0, 9.9, False),
        ("max-age=5, min-fresh=10", 4.0, 9.0, False),
    ],
)
def test_limits_hold_to_the_fraction(
    header: str, age_s: float, left_s: float, allowed: bool
) -> None:
    """A second that has begun is more than none."""
    assert allowed is parse(header).allow(age_s, left_s)
