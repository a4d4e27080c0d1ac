"""The binary encoding of Thrift: messages and structs, without I/O.

A struct is an attrs class whose fields carry their number and type (`field`). Fields that a class does not name are
kept as bytes, so a struct that is read and written back loses nothing that a newer server put into it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

import attrs

_BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64, _TEXT, _STRUCT, _MAP, _SET, _LIST = 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
_SIZES = {_BOOL: 1, _BYTE: 1, _DOUBLE: 8, _I16: 2, _I32: 4, _I64: 8}
_VERSION = 0x80010000
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_DEEPEST = 32
"""Maximum number of nested values; the deepest message of a Metastore has fewer than ten."""
BYTES_PER_VALUE = 32
"""A message has at most one value per so many bytes of the limit, because a value takes more memory than its bytes."""


class Malformed(Exception):
    """The bytes are no message of this encoding, or exceed a limit."""


@attrs.frozen
class Kind:
    """The type of a value.

    Attributes:
        code: the number of the type in the encoding.
        of: the types of a list's elements, or of a map's keys and values.
        struct: the class of a struct.
    """

    code: int
    of: tuple[Kind, ...] = ()
    struct: type[Any] | None = None


BOOL, I16, I32, I64, TEXT = Kind(_BOOL), Kind(_I16), Kind(_I32), Kind(_I64), Kind(_TEXT)
TEXTS = Kind(_MAP, (TEXT, TEXT))
"""A map of texts."""


def list_of(kind: Kind) -> Kind:
    return Kind(_LIST, (kind,))


def struct_of(kind: type[Any]) -> Kind:
    return Kind(_STRUCT, struct=kind)


def field(number: int, kind: Kind) -> Any:
    """Return an optional field of a struct; None is not sent."""
    return attrs.field(default=None, metadata={"number": number, "kind": kind})


def rest() -> Any:
    """Return the attribute that keeps the fields that a struct does not name."""
    return attrs.field(default=b"", repr=False, kw_only=True)


@attrs.frozen
class Failure:
    """The server's report that it does not know a method or cannot decode a request."""

    message: str | None = field(1, TEXT)
    kind: int | None = field(2, I32)
    rest: bytes = rest()


_FIELDS: dict[type[Any], Mapping[int, tuple[str, Kind]]] = {}
"""The fields of each struct by number, as far as structs were used."""


def _fields(kind: type[Any]) -> Mapping[int, tuple[str, Kind]]:
    known = _FIELDS.get(kind)
    if known is not None:
        return known
    found = _FIELDS[kind] = {
        each.metadata["number"]: (each.name, each.metadata["kind"])
        for each in attrs.fields(kind)
        if "number" in each.metadata
    }
    return found


# -- writing ---------------------------------------------------------------------------------------------------------


def request(method: str, number: int, arguments: tuple[tuple[Kind, Any], ...]) -> bytes:
    """Return the message of a call; the arguments are numbered from 1."""
    out = [struct.pack(">I", _VERSION | _CALL), _text(method), struct.pack(">i", number)]
    for position, (kind, value) in enumerate(arguments, 1):
        if value is not None:
            out.append(struct.pack(">bh", kind.code, position))
            _write(out, kind, value)
    out.append(b"\0")
    return b"".join(out)


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack(">i", len(content)) + content


def _write(out: list[bytes], kind: Kind, value: Any) -> None:
    if kind.code == _TEXT:
        out.append(_text(value))
    elif kind.code == _STRUCT:
        for number, (name, inner) in _fields(type(value)).items():
            part = getattr(value, name)
            if part is not None:
                out.append(struct.pack(">bh", inner.code, number))
                _write(out, inner, part)
        out.append(value.rest)
        out.append(b"\0")
    elif kind.code == _MAP:
        keys, values = kind.of
        out.append(struct.pack(">bbi", keys.code, values.code, len(value)))
        for key, each in value.items():
            _write(out, keys, key)
            _write(out, values, each)
    elif kind.code == _LIST:
        out.append(struct.pack(">bi", kind.of[0].code, len(value)))
        for each in value:
            _write(out, kind.of[0], each)
    else:
        out.append(struct.pack({_BOOL: ">?", _I16: ">h", _I32: ">i", _I64: ">q"}[kind.code], value))


# -- reading ---------------------------------------------------------------------------------------------------------


class Reader:
    """Read one message whose bytes arrive in parts.

    Args:
        receive: Returns at least one more byte.
        limit: The maximum number of bytes of the message.
    """

    def __init__(self, receive: Callable[[], bytes], limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._bytes = bytearray()
        self._at = 0
        self._values = max(1000, limit // BYTES_PER_VALUE)

    @property
    def surplus(self) -> int:
        """The number of bytes that arrived after the message."""
        return len(self._bytes) - self._at

    def reply(self, method: str, number: int, results: Mapping[int, Kind]) -> tuple[int, Any] | None:
        """Return field and value of a call's result; None if it has none.

        Args:
            method: The method that was called.
            number: The number of the call.
            results: The types of the results: 0 is the return value, each other one an exception.

        Raises:
            Malformed: The message is no reply to this call, or exceeds a limit.
        """
        version = int.from_bytes(self._take(4))
        if version & 0xFFFF0000 != _VERSION:
            raise Malformed("the answer is no message of Thrift's binary protocol")
        name, told = self._read_text(), self._integer(4)
        if told != number or name != method:
            raise Malformed(f"the answer is to call {told} of {name!r:.80}; expected {number} of {method!r}")
        kind = version & 0xFF
        if kind == _EXCEPTION:
            return -1, self._read_struct(Failure, 0)
        if kind != _REPLY:
            raise Malformed(f"the answer has the kind {kind}; expected a reply")
        found: tuple[int, Any] | None = None
        while code := self._take(1)[0]:
            position = self._integer(2)
            expected = results.get(position)
            if expected is not None and expected.code == code:
                found = position, self._read(expected, 1)
            else:
                self._skip(code, 1)
        return found

    def _take(self, count: int) -> bytes:
        if count < 0 or self._at + count > self._limit:
            raise Malformed(f"the answer has more than {self._limit:,} bytes")
        while len(self._bytes) - self._at < count:
            self._bytes += self._receive()
        taken = bytes(self._bytes[self._at : self._at + count])
        self._at += count
        return taken

    def _integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), signed=True)

    def _read_text(self) -> str:
        # Java sends half of a surrogate pair as "?", so anything else is not from a Metastore.
        try:
            return self._take(self._integer(4)).decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a text of the answer is not UTF-8: {error}") from error

    def _count(self, depth: int, values: int = 1) -> None:
        self._values -= values
        if self._values < 0 or values < 0 or depth > _DEEPEST:
            raise Malformed("the answer has too many values, or nests them too deeply")

    def _read(self, kind: Kind, depth: int) -> Any:
        self._count(depth)
        match kind.code:
            case 11:  # text
                return self._read_text()
            case 12:  # struct
                assert kind.struct is not None
                return self._read_struct(kind.struct, depth)
            case 13:  # map
                codes, count = self._take(2), self._integer(4)
                if count and codes != bytes(inner.code for inner in kind.of):
                    raise Malformed("a map of the answer has other types than the interface of the Metastore")
                self._count(depth, count)
                keys, values = kind.of
                return {self._read(keys, depth + 1): self._read(values, depth + 1) for _ in range(count)}
            case 15:  # list
                code, count = self._take(1)[0], self._integer(4)
                if count and code != kind.of[0].code:
                    raise Malformed("a list of the answer has another type than the interface of the Metastore")
                self._count(depth, count)
                return [self._read(kind.of[0], depth + 1) for _ in range(count)]
            case 2:  # bool
                return self._take(1) != b"\0"
            case _:
                return self._integer(_SIZES[kind.code])

    def _read_struct(self, kind: type[Any], depth: int) -> Any:
        fields, values, unknown = _fields(kind), {}, []
        start = self._at
        while code := self._take(1)[0]:
            position = self._integer(2)
            name, expected = fields.get(position, ("", None))
            if expected is not None and expected.code == code:
                values[name] = self._read(expected, depth + 1)
            else:
                self._skip(code, depth + 1)
                unknown.append(bytes(self._bytes[start : self._at]))
            start = self._at
        return kind(**values, rest=b"".join(unknown))

    def _skip(self, code: int, depth: int) -> None:
        self._count(depth)
        if code in _SIZES:
            self._take(_SIZES[code])
        elif code == _TEXT:
            self._take(self._integer(4))
        elif code == _STRUCT:
            while inner := self._take(1)[0]:
                self._take(2)
                self._skip(inner, depth + 1)
        elif code in (_LIST, _SET):
            inner, count = self._take(1)[0], self._integer(4)
            self._count(depth, count)
            for _ in range(count):
                self._skip(inner, depth + 1)
        elif code == _MAP:
            inner, other, count = self._take(1)[0], self._take(1)[0], self._integer(4)
            self._count(depth, count)
            for _ in range(count):
                self._skip(inner, depth + 1)
                self._skip(other, depth + 1)
        else:
            raise Malformed(f"the answer has a value of the unknown type {code}")
