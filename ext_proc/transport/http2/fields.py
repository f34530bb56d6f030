"""Read header blocks (RFC 7541), fast once the peer keeps no table, and write ours as literals.

python-hyper's `hpack` reads what comes before the peer heard that our table has no room. From then
on no block depends on another, and a reader for that case alone takes a twentieth of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from hpack import Decoder
from hpack.exceptions import HPACKDecodingError, OversizedHeaderListError
from hpack.huffman_table import (
    HUFFMAN_COMPLETE,
    HUFFMAN_EMIT_SYMBOL,
    HUFFMAN_FAIL,
    HUFFMAN_TABLE,
)
from hpack.table import HeaderTable

from ext_proc.transport.http2.faults import ConnectionFault, Reason
from ext_proc.transport.http2.frames import Code

Field: TypeAlias = tuple[bytes, bytes]

FIELD_OVERHEAD_BYTES: Final = 32  # RFC 9113, 6.5.2: what each field counts beyond its own bytes
MOST_STRINGS: Final = 512  # remembered; each connection says the same few again and again
MOST_INTEGER_BYTES: Final = 4  # no index and no length that fits a block needs more

_STATIC: Final[Sequence[Field]] = tuple(HeaderTable.STATIC_TABLE)
_STATIC_NAMES: Final = {name: index for index, (name, _) in reversed([*enumerate(_STATIC, 1)])}
_INDEXED, _INDEXING, _RESIZE, _HUFFMAN = 0x80, 0x40, 0x20, 0x80


class Fields(NamedTuple):
    """What a block says, and the places in it where a field ends."""

    fields: Sequence[Field]
    ends: Sequence[int]
    """Empty when the block depends on others: then it may not be cut."""


class FieldReader:
    """Reads the blocks of one connection, each exactly once and in order."""

    def __init__(self, most_list_bytes: int) -> None:
        self._most_list_bytes: Final = most_list_bytes
        self._decoder: Final = Decoder(most_list_bytes)
        self._strings: Final[dict[bytes, bytes]] = {}
        self.stateless = False
        """Whether equal blocks say the same from here on."""

    def acknowledged(self) -> None:
        """Forget the table: the peer said that it read our settings.

        Its next block should say so as well (RFC 7541, 4.2), but nothing is lost if it does not:
        what refers to the table is refused from here on.
        """
        self.stateless = True

    def read(self, block: bytes) -> Fields:
        """Return the fields of a block; raise `ConnectionFault` when it cannot be read."""
        if self.stateless:
            try:
                return self._read_literals(block)
            except IndexError:  # it ends where more was to come
                raise ConnectionFault(Code.COMPRESSION_ERROR, Reason.COMPRESSION) from None
        try:
            decoded: Any = self._decoder.decode(block, raw=True)
            fields: list[Field] = [(name, value) for name, value in decoded]
        except OversizedHeaderListError:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, Reason.HEADER_BLOCK) from None
        except (HPACKDecodingError, IndexError):
            raise ConnectionFault(Code.COMPRESSION_ERROR, Reason.COMPRESSION) from None
        return Fields(fields, ())

    def _read_literals(self, block: bytes) -> Fields:
        fields: list[Field] = []
        ends: list[int] = []
        place, size = 0, 0
        while place < len(block):
            first = block[place]
            if first & _INDEXED:
                index, place = _integer(block, place, 0x7F)
                field = _static(index)
            elif first & (_INDEXING | _RESIZE) == _RESIZE:
                # A table of no size may only be resized to none, and only before the first field.
                if fields or first != _RESIZE:
                    raise ConnectionFault(Code.COMPRESSION_ERROR, Reason.COMPRESSION)
                place += 1
                continue
            else:
                # Indexed or not, sensitive or not: without a table it is the same.
                index, place = _integer(block, place, 0x3F if first & _INDEXING else 0x0F)
                if index:
                    name = _static(index)[0]
                else:
                    name, place = self._string(block, place)
                value, place = self._string(block, place)
                field = (name, value)
            size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
            if size > self._most_list_bytes:
                raise ConnectionFault(Code.ENHANCE_YOUR_CALM, Reason.HEADER_BLOCK)
            fields.append(field)
            ends.append(place)
        return Fields(fields, ends)

    def _string(self, block: bytes, place: int) -> tuple[bytes, int]:
        first = block[place]
        length, place = _integer(block, place, 0x7F)
        end = place + length
        if end > len(block):
            raise ConnectionFault(Code.COMPRESSION_ERROR, Reason.COMPRESSION)
        text = block[place:end]
        if not first & _HUFFMAN:
            return text, end
        known = self._strings.get(text)
        if known is None:
            known = unpack(text)
            if len(self._strings) >= MOST_STRINGS:
                self._strings.clear()
            self._strings[text] = known
        return known, end


def _static(index: int) -> Field:
    if not 0 < index <= len(_STATIC):
        raise ConnectionFault(Code.COMPRESSION_ERROR, Reason.COMPRESSION)
    return _STATIC[index - 1]


def _integer(block: bytes, place: int, most_in_prefix: int) -> tuple[int, int]:
    """Read an integer (RFC 7541, 5.1); return it, and the place after it."""
    number = block[place] & most_in_prefix
    place += 1
    if number < most_in_prefix:
        return number, place
    for shift in range(0, 7 * MOST_INTEGER_BYTES, 7):
        byte = block[place]
        place += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ConnectionFault(Code.COMPRESSION_ERROR, Reason.COMPRESSION)


# A state of Huffman's code is a list: for each byte the state after it and the text that it
# completes, or None where there is no such code; then whether the code may end here. A list is
# filled when it is first needed: most of the 256 never are.
_STATES: Final[list[list[Any]]] = [[] for _ in range(len(HUFFMAN_TABLE) // 16)]
_COMPLETE: Final = {state for state, flags, _ in HUFFMAN_TABLE if flags & HUFFMAN_COMPLETE}


def unpack(packed: bytes) -> bytes:
    """Undo Huffman's code (RFC 7541, 5.2); raise `ConnectionFault` when it is none."""
    while True:
        state = _STATES[0]
        parts: list[bytes] = []
        add = parts.append
        try:
            for byte in packed:
                state, part = state[byte]
                add(part)
            if state[256]:
                return b"".join(parts)
        except IndexError:
            _fill(state)
            continue
        except TypeError:
            pass
        raise ConnectionFault(Code.COMPRESSION_ERROR, Reason.COMPRESSION)


def _fill(state: list[Any]) -> None:
    """Put two steps of the library's own table, which goes by halves of bytes, into one."""
    number = next(number for number, known in enumerate(_STATES) if known is state)
    for byte in range(256):
        after, text, failed = number, b"", 0
        for half in (byte >> 4, byte & 0x0F):
            after, flags, symbol = HUFFMAN_TABLE[after * 16 + half]
            failed |= flags & HUFFMAN_FAIL
            if flags & HUFFMAN_EMIT_SYMBOL:
                text += bytes((symbol,))
        state.append(None if failed else (_STATES[after], text))
    state.append(number in _COMPLETE)


def literals(fields: Iterable[Field]) -> bytes:
    """Write fields so that the reader's table stays as it is (RFC 7541, 6.1 and 6.2.2)."""
    block = bytearray()
    for name, value in fields:
        if (name, value) in _STATIC:
            block.append(_INDEXED | _STATIC.index((name, value)) + 1)
            continue
        index = _STATIC_NAMES.get(name, 0)
        block += _written(index, 0x0F)
        if not index:
            block += _written(len(name), 0x7F) + name
        block += _written(len(value), 0x7F) + value
    return bytes(block)


def _written(number: int, most_in_prefix: int) -> bytes:
    if number < most_in_prefix:
        return bytes((number,))
    out = bytearray((most_in_prefix,))
    number -= most_in_prefix
    while number >= 0x80:
        out.append(0x80 | number & 0x7F)
        number >>= 7
    out.append(number)
    return bytes(out)
