"""How byte streams are cut into events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filters.framing import MOST_SMALL_EVENTS, Event, Framer, JsonArrayFramer, SseFramer

BOM = b"\xef\xbb\xbf"


def cut(framer: Framer, chunks: Iterable[bytes]) -> list[Event]:
    events: list[Event] = []
    for chunk in chunks:
        events += framer.feed(chunk)
    return events + framer.close()


def datas(events: Iterable[Event]) -> list[bytes]:
    return [event.data for event in events if event.data]


def split_at(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(ends)]


def split_everywhere(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]


LINE_END = st.sampled_from([b"\n", b"\r", b"\r\n"])
SSE_PIECE = st.one_of(
    LINE_END,
    st.sampled_from([b"data: ", b"data", b"event: delta", b":", b" ", BOM, "é漢🙂".encode()]),
    st.binary(max_size=4),
)
SSE_STREAM = st.lists(SSE_PIECE, max_size=40).map(b"".join)
PLACES = st.lists(st.integers(min_value=0, max_value=10_000), max_size=8)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=4), below, max_size=3)
    ),
    max_leaves=8,
)
SPACE = st.text(" \t\r\n", max_size=3)


# --- Server-sent events --------------------------------------------------------------------------


@given(stream=SSE_STREAM, places=PLACES)
def test_any_cut_of_an_event_stream_gives_the_same_events(stream: bytes, places: list[int]) -> None:
    """Where the network cuts does not show, not even inside CRLF or a character."""
    whole = cut(SseFramer(), [stream])
    assert whole == cut(SseFramer(), split_at(stream, places))
    assert whole == cut(SseFramer(), split_everywhere(stream))


@given(stream=SSE_STREAM, places=PLACES, largest=st.integers(min_value=0, max_value=30))
def test_the_raws_of_an_event_stream_joined_are_the_stream(
    stream: bytes, places: list[int], largest: int
) -> None:
    """No byte is lost, doubled or moved, whether the framer gives up or not."""
    events = cut(SseFramer(largest), split_at(stream, places))
    assert stream == b"".join(event.raw for event in events)


@given(
    lines=st.lists(
        st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), min_size=1),
        max_size=4,
    ),
    ends=st.lists(LINE_END, min_size=1),
    places=PLACES,
)
def test_data_comes_back_as_it_was_sent(
    lines: list[list[str]], ends: list[bytes], places: list[int]
) -> None:
    """Data of any lines, ended by any mixture of terminators, arrives joined by line feeds."""
    stream = b""
    turn = 0
    # An ending of LF behind one of CR is one CRLF: not a mixture that a sender could mean.
    safe = [end for end in ends if end != b"\n"] or [b"\n"]
    for event in lines:
        for line in [*event, None]:
            stream += b"" if line is None else b"data: " + line.encode()
            stream += safe[turn % len(safe)]
            turn += 1
    expected = ["\n".join(event).encode() for event in lines]
    assert expected == [event.data for event in cut(SseFramer(), split_at(stream, places))]


FIELD = st.sampled_from(
    [
        *(b"data: 1", b"data:2", b"data", b"data:", b"data : 3", b"data: a: b", b" data: 4"),
        *(b"event: delta", b"event:", b"event", b"id: 7", b"id", b"retry: 1", b"retry: x"),
        *(b": a comment", b":", b"unknown: 5", b"", b"", BOM + b"data: 6"),
    ]
)


def as_a_browser(stream: bytes) -> list[tuple[str, bytes]]:
    """Read a stream line by line, as WHATWG HTML, 9.2.6 says; return names and data of events."""
    found: list[tuple[str, bytes]] = []
    name, data = b"", b""
    whole = stream.removeprefix(BOM).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for line in whole.split(b"\n")[:-1]:
        if not line:
            if data:
                found.append((name.decode(errors="replace"), data.removesuffix(b"\n")))
            name, data = b"", b""
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data += value + b"\n"
        elif field == b"event":
            name = value
    return found


@given(lines=st.lists(st.tuples(FIELD, LINE_END), max_size=24), places=PLACES, bom=st.booleans())
def test_events_are_those_that_a_browser_sees(
    lines: list[tuple[bytes, bytes]], places: list[int], bom: bool
) -> None:
    """Whatever fields, comments and line ends they are made of; empty data is as none here."""
    stream = BOM * bom + b"".join(map(b"".join, lines)) + b"\n\n"
    events = [(event.name, event.data) for event in cut(SseFramer(), split_at(stream, places))]
    seen = [(name, data) for name, data in as_a_browser(stream) if data]
    assert seen == [(name, data) for name, data in events if data]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_all_three_line_ends_end_a_line(end: bytes) -> None:
    """LF, CR and CRLF are equal."""
    stream = b"event: delta" + end + b"data: 1" + end + end + b"data: 2" + end + end
    expected = [("delta", b"1"), ("", b"2")]
    assert expected == [(event.name, event.data) for event in cut(SseFramer(), [stream])]


def test_several_events_in_one_chunk_come_at_once() -> None:
    """A chunk gives every event that it completes."""
    events = SseFramer().feed(b"data: 1\n\ndata: 2\n\ndata: 3")
    assert [b"1", b"2"] == [event.data for event in events]


def test_an_event_is_given_with_the_byte_that_ends_it() -> None:
    """Nothing waits for the next event when the line ends in LF."""
    framer = SseFramer()
    assert [] == framer.feed(b"data: 1\r\n\r")
    assert [b"1"] == [event.data for event in framer.feed(b"\n")]


def test_a_bare_cr_at_a_chunks_end_waits_for_its_line_feed() -> None:
    """CR, then LF in the next chunk, is one line end, not a line end and an empty line."""
    framer = SseFramer()
    assert [] == framer.feed(b"data: 1\r")
    assert [] == framer.feed(b"\ndata: 2\r\n")
    assert [Event(b"data: 1\r\ndata: 2\r\n\r\n", "", b"1\n2")] == framer.feed(b"\r\n")


def test_an_event_ended_by_cr_alone_is_given_at_the_end() -> None:
    """The end of the stream shows that no line feed follows."""
    assert [b"1"] == datas(cut(SseFramer(), [b"data: 1\r\r"]))


def test_a_comment_carries_no_data() -> None:
    """A keep-alive comment is an event of its own with its bytes and nothing else."""
    assert [Event(b": ping\n\n")] == SseFramer().feed(b": ping\n\n")


def test_an_empty_line_that_ends_nothing_is_an_event_of_its_own() -> None:
    """Surplus empty lines pass on, wherever they stand."""
    expected = [Event(b"\n"), Event(b"data: 1\n\n", "", b"1"), Event(b"\r\n")]
    assert expected == SseFramer().feed(b"\ndata: 1\n\n\r\n")


def test_lines_of_data_are_joined_by_line_feeds() -> None:
    """One space behind the colon is dropped, a field without colon is an empty line."""
    events = SseFramer().feed(b"data:a\ndata\ndata:  b\nid: 7\nretry: 1\nunknown: x\n\n")
    assert [b"a\n\n b"] == datas(events)


def test_a_byte_order_mark_leads_the_stream_only() -> None:
    """The first is no part of the first field's name; a later one is."""
    stream = BOM + b"data: 1\n\n" + BOM + b"data: 2\n\n"
    events = cut(SseFramer(), split_everywhere(stream))
    assert [b"1", b""] == [event.data for event in events]
    assert stream == b"".join(event.raw for event in events)


def test_a_last_event_without_its_empty_line_is_given_at_the_end() -> None:
    """Servers that end without a blank line still said what they said."""
    framer = SseFramer()
    assert [] == framer.feed(b"data: [DONE]")
    assert [Event(b"data: [DONE]", "", b"[DONE]")] == framer.close()
    assert [] == framer.close()


def test_an_event_name_that_is_not_utf8_is_kept_readable() -> None:
    """Odd bytes in a name are replaced in the name and kept in the raw."""
    assert [Event(b"event: \xff\n\n", "�")] == SseFramer().feed(b"event: \xff\n\n")


# --- A streamed JSON array -----------------------------------------------------------------------


@given(
    elements=st.lists(JSON, max_size=5),
    space=SPACE,
    tail=SPACE,
    indent=st.sampled_from([None, 0, 2]),
    places=PLACES,
)
def test_every_element_of_an_array_comes_back(
    elements: list[object], space: str, tail: str, indent: int | None, places: list[int]
) -> None:
    """Any elements, in any formatting and any cut, are found again, one event each."""
    written = [json.dumps(element, indent=indent, ensure_ascii=False) for element in elements]
    stream = (space + "[" + f"{space},{space}".join(written) + space + "]" + tail).encode()
    whole = cut(JsonArrayFramer(), [stream])
    assert elements == [json.loads(data) for data in datas(whole)]
    assert [text.encode() for text in written] == datas(whole)
    assert whole == cut(JsonArrayFramer(), split_at(stream, places))
    assert whole == cut(JsonArrayFramer(), split_everywhere(stream))


@given(
    pieces=st.lists(st.sampled_from(list('[]{},:"\\ab1 \n')), max_size=40),
    places=PLACES,
    largest=st.integers(min_value=0, max_value=30),
)
def test_the_raws_of_any_bytes_joined_are_the_stream(
    pieces: list[str], places: list[int], largest: int
) -> None:
    """What is no JSON at all passes complete too."""
    stream = "".join(pieces).encode()
    events = cut(JsonArrayFramer(largest), split_at(stream, places))
    assert stream == b"".join(event.raw for event in events)


def test_an_element_is_given_with_the_byte_that_ends_it() -> None:
    """No element waits for the comma behind it."""
    framer = JsonArrayFramer()
    assert [Event(b'[{"a":1}', "", b'{"a":1}')] == framer.feed(b'[{"a":1}')
    assert [Event(b',\r\n{"a":2}', "", b'{"a":2}')] == framer.feed(b',\r\n{"a":2}')
    assert [Event(b"\n]")] == framer.feed(b"\n]")
    assert [] == framer.feed(b"\n")
    assert [Event(b"\n")] == framer.close()


def test_brackets_and_quotes_inside_strings_are_text() -> None:
    """Strings and their escapes hide every bracket, comma and quote."""
    element = json.dumps({"a": 'x]}"\\', "b\\": ["[{,", "\\\\"]}).encode()
    events = cut(JsonArrayFramer(), split_everywhere(b"[" + element + b"," + element + b"]"))
    assert [element, element] == datas(events)


def test_a_stream_that_ends_inside_an_element_gives_no_data_for_it() -> None:
    """Half an element is bytes, not an element."""
    events = cut(JsonArrayFramer(), [b'[{"a":1},{"b":'])
    assert [Event(b'[{"a":1}', "", b'{"a":1}'), Event(b',{"b":')] == events


@pytest.mark.parametrize("stream", [b'{"error": {}}', b"null", b"\x00[", BOM + b"[1]"])
def test_what_is_no_array_passes_without_data(stream: bytes) -> None:
    """An error object in place of the array goes through as it comes."""
    framer = JsonArrayFramer()
    assert [Event(stream)] == framer.feed(stream)
    assert [Event(b"more")] == framer.feed(b"more")
    assert [] == framer.close()


# --- Bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "small", "large"),
    [
        (SseFramer, b"data: 1\n\n", b"data: 2345678\n\n"),
        (JsonArrayFramer, b'[{"a":1}', b',{"a":2345678}'),
    ],
)
@pytest.mark.parametrize("split", [split_everywhere, lambda data: [data]])
def test_an_event_over_the_bound_makes_the_framer_transparent(
    make: Callable[[int], Framer],
    small: bytes,
    large: bytes,
    split: Callable[[bytes], list[bytes]],
) -> None:
    """The events before it are read, it and all behind it pass without data, none is kept."""
    framer = make(len(large) - 1)
    events = cut(framer, split(small + large + small))
    assert 1 == len(datas(events))
    assert small == events[0].raw
    assert small + large + small == b"".join(event.raw for event in events)
    assert 1 + len(datas(cut(make(len(large)), split(small + large)))) == 3


@pytest.mark.parametrize(
    ("make", "start", "small"),
    [
        (SseFramer, b"", b"\n"),
        (SseFramer, b"", b":\n\n"),
        (SseFramer, b"", b"data:{}\n\n"),
        (JsonArrayFramer, b"[", b"{},"),
    ],
)
def test_very_many_small_events_make_the_framer_transparent(
    make: Callable[[], Framer], start: bytes, small: bytes
) -> None:
    """A megabyte of empty lines took ten seconds to look at; no byte of it is lost."""
    stream = start + small * 100_000
    events = cut(make(), [stream])
    assert MOST_SMALL_EVENTS < len(events) < 10 * MOST_SMALL_EVENTS
    assert stream == b"".join(event.raw for event in events)


def test_many_events_of_a_models_size_are_read() -> None:
    """Also by the byte, and behind some keep-alive comments."""
    token = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    stream = b": hi\n\n" * MOST_SMALL_EVENTS + token * 5_000
    assert 5_000 == len(datas(cut(SseFramer(), [stream])))
    assert 5_000 == len(datas(cut(SseFramer(), [bytes((byte,)) for byte in stream])))


@pytest.mark.parametrize(
    ("make", "stream"),
    [
        (SseFramer, b"data: " + b"x" * 1_000_000 + b"\n\n"),
        (JsonArrayFramer, b'[{"a":"' + b"\\n" * 500_000 + b'"}]'),
        (JsonArrayFramer, b"[[" + b"[" * 500_000 + b"]" * 500_000 + b"]]"),
    ],
)
@pytest.mark.slow
def test_a_large_event_fed_by_the_byte_is_scanned_once(
    make: Callable[[], Framer], stream: bytes
) -> None:
    """Scanning a million bytes again for each of them would take an hour."""
    events = cut(make(), (stream[index : index + 1] for index in range(len(stream))))
    assert stream == b"".join(event.raw for event in events)


@given(
    st.lists(
        st.sampled_from([b'data: {"a": "%d"}\n\n' % 10**30, b": ping\n\n", b"data: [DONE]\n\n"])
    )
)
def test_a_whole_event_a_chunk_is_cut_as_in_one_piece(events: list[bytes]) -> None:
    """The short way of chunks that are one event gives what the long way gives."""
    one, other = SseFramer(), SseFramer()
    chunks = [event for chunk in events for event in one.feed(chunk)]
    assert [*other.feed(b"".join(events)), *other.close()] == [*chunks, *one.close()]


# --- Behind the end ------------------------------------------------------------------------------


@given(stream=SSE_STREAM, places=PLACES)
def test_an_event_put_behind_a_stream_is_read_as_its_last(stream: bytes, places: list[int]) -> None:
    """Wherever the stream ended, and whether the reader has what was left of it or not."""
    framer = SseFramer()
    given = [event for chunk in split_at(stream, places) for event in framer.feed(chunk)]
    rest = framer.close()
    for left in (rest, []):
        behind = b"".join(event.raw for event in left)
        told = b"".join(event.raw for event in given) + behind
        last = framer.append(b"why", "error", behind=behind)
        *_, (name, data) = as_a_browser(told + last)
        assert ("error", b"why") == (name, data)


@pytest.mark.parametrize("make", [SseFramer, JsonArrayFramer])
def test_nothing_is_put_behind_a_stream_that_was_given_up(make: Callable[[int], Framer]) -> None:
    """Where an event would begin is not known there."""
    framer = make(4)
    framer.feed(b"data: 12345")
    assert (True, b"") == (framer.transparent, framer.append(b"1"))
