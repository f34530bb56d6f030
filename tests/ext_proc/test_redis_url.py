"""A URL says which Redis it is, in the forms that its clients know, and never a password."""

from __future__ import annotations

import pytest

from ext_proc.redis_url import Kind, RedisUrl, parse_redis_url


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("redis://cache", RedisUrl(Kind.ONE, (("cache", 6379),))),
        ("redis://me@cache:7/3", RedisUrl(Kind.ONE, (("cache", 7),), "me", db=3)),
        ("redis://m%40e@cache", RedisUrl(Kind.ONE, (("cache", 6379),), "m@e")),
        ("valkey://[::1]:7", RedisUrl(Kind.ONE, (("::1", 7),))),
        ("rediss://cache/", RedisUrl(Kind.ONE, (("cache", 6379),), tls=True)),
        ("valkeys://cache", RedisUrl(Kind.ONE, (("cache", 6379),), tls=True)),
        ("unix:///run/redis.sock", RedisUrl(Kind.ONE, ("/run/redis.sock",))),
        ("unix://me@/run/r.sock?db=2", RedisUrl(Kind.ONE, ("/run/r.sock",), "me", db=2)),
        ("unix:///run/r@1.sock", RedisUrl(Kind.ONE, ("/run/r@1.sock",))),
        (
            "redis+sentinel://one,two:7/main",
            RedisUrl(Kind.SENTINEL, (("one", 26379), ("two", 7)), service="main"),
        ),
        (
            "rediss+sentinel://me@[::1]/main/4",
            RedisUrl(Kind.SENTINEL, (("::1", 26379),), "me", tls=True, db=4, service="main"),
        ),
        (
            "redis+cluster://one:7000,two",
            RedisUrl(Kind.CLUSTER, (("one", 7000), ("two", 6379))),
        ),
        ("valkeys+cluster://one/0", RedisUrl(Kind.CLUSTER, (("one", 6379),), tls=True)),
    ],
)
def test_every_form_is_read(text: str, read: RedisUrl) -> None:
    """Ports, a user and a database may be left out."""
    assert read == parse_redis_url(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cache:6379", 'a URL such as "redis://host:6379/0", got "cache:6379"'),
        ("redis://", 'a URL such as "redis://host:6379/0", got "redis://"'),
        ("redis://a:0", 'a URL such as "redis://host:6379/0", got "redis://a:0"'),
        ("redis://a:65536", 'a URL such as "redis://host:6379/0", got "redis://a:65536"'),
        ("redis://a,b", 'a URL such as "redis://host:6379/0", got "redis://a,b"'),
        ("redis://a/zero", 'a URL such as "redis://host:6379/0", got "redis://a/zero"'),
        ("redis+x://a", 'a URL such as "redis://host:6379/0", got "redis+x://a"'),
        ("redis://a?db=1", 'no options behind a "?" in the URL, got "redis://a?db=1"'),
        ("unix://run/r", '"unix:///path" or "unix:///path?db=0", got "unix://run/r"'),
        ("unix:///r?x=1", '"unix:///path" or "unix:///path?db=0", got "unix:///r?x=1"'),
        (
            "redis+sentinel://one",
            '"redis+sentinel://host:26379,host:26379/service", got "redis+sentinel://one"',
        ),
        (
            "redis+cluster://one,/0",
            '"redis+cluster://host:6379,host:6379", got "redis+cluster://one,/0"',
        ),
        (
            "redis+cluster://one/1",
            '"redis+cluster://host:6379,host:6379", got "redis+cluster://one/1"',
        ),
    ],
)
def test_what_is_no_such_url_is_refused(text: str, expected: str) -> None:
    """The message says what was expected and what was found."""
    with pytest.raises(ValueError, match=r"^expected ") as caught:
        parse_redis_url(text)
    assert f"expected {expected}" == str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "redis://:hunter2@cache",
        "redis://me:hunter2@cache",
        "redis://:hun/ter2@cache",
        "unix://:hunter2@/run/redis.sock",
        "unix://:hun/ter2@/run/redis.sock",
        "redis+sentinel://:hunter2@one,two/main",
        "redis+cluster://me:hun%2Fter2@one",
    ],
)
def test_a_password_is_refused_and_not_repeated(text: str) -> None:
    """Also one that breaks the URL."""
    with pytest.raises(ValueError, match=r"^expected ") as caught:
        parse_redis_url(text)
    expected = "expected FOREBAY_REDIS_PASSWORD in the environment, got a password here"
    assert expected == str(caught.value)
