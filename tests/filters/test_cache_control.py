"""Reading the client's `Cache-Control`."""

import pytest

from filters.cache_control import Directives, parse


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Directives()),
        ("no-cache", Directives(no_cache=True)),
        ("No-Store", Directives(no_store=True)),
        ("max-age=60", Directives(max_age_s=60)),
        ('max-age="60"', Directives(max_age_s=60)),
        ("max-age = 60 , no-cache", Directives(no_cache=True, max_age_s=60)),
        ("max-age=0", Directives(max_age_s=0)),
        ("max-age=-1", Directives()),
        ("max-age=soon", Directives()),
        ("max-age=٣", Directives()),
        ("max-age", Directives()),
        ("max-age=99999999999999999999", Directives(max_age_s=999_999_999)),
        (",,;=,no-transform,only-if-cached", Directives()),
    ],
)
def test_known_directives_are_read_and_others_ignored(header: str, expected: Directives) -> None:
    """Names know no case, values may be quoted, and what is malformed is not there."""
    assert expected == parse(header)
