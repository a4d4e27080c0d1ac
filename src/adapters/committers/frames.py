"""What processes that share committers send to each other.

A frame is the length of a JSON object and of the bytes that follow it, the object, and the bytes, which are the rows of
an append or upsert as an Arrow IPC stream. All sizes are checked before anything is decoded.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

import attrs
import pyarrow as pa

from lancekeep.domain import errors
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import InvalidInput, LancekeepError, causes
from lancekeep.domain.idempotency import Superseded
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.format.arrow_ipc import CONTINUATION, ROWS_WITHOUT_BYTES, message_of, stream_of, table_of
from lancekeep.ports.committers import Declined, Reply, SentUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.rows import MergeCounts

HEAD: Final = struct.Struct(">II")
MOST_JSON: Final = 1 << 20
MOST_ROWS_BYTES: Final = 16 << 20
"""The maximum size in bytes of the rows of an append; the largest append that shares a commit has half as many."""
_DELIMITER: Final = "$"

_ERRORS: Final[Mapping[str, type[LancekeepError]]] = {
    kind.__name__: kind
    for kind in (*vars(errors).values(), Superseded)
    if isinstance(kind, type) and issubclass(kind, LancekeepError)
}
"""The errors that pass from process to process by their names; `CommitUnknown` passes with its token."""


class Malformed(Exception):
    """The bytes are no frame, so the connection is of no use."""


def frame(message: Mapping[str, Any], rows: bytes = b"") -> bytes:
    """Return a frame."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return HEAD.pack(len(text), len(rows)) + text + rows


class Incoming:
    """Cuts received bytes into frames.

    Args:
        most_bytes: The maximum size of the bytes that follow the object of a frame.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._content = bytearray()

    def __len__(self) -> int:
        return len(self._content)

    def add(self, content: bytes) -> None:
        """Add received bytes."""
        self._content += content

    def next(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next frame; None if it is not complete.

        Raises:
            Malformed: The frame is too long, or its object is no JSON object.
        """
        content = self._content
        if len(content) < HEAD.size:
            return None
        text, rows = HEAD.unpack_from(content)
        if text > MOST_JSON or rows > self._most:
            raise Malformed(f"a frame of {text} and {rows} bytes; the maximum is {MOST_JSON} and {self._most}")
        end = HEAD.size + text
        if len(content) < end + rows:
            return None
        try:
            message = json.loads(content[HEAD.size : end])
        except (ValueError, RecursionError) as error:
            raise Malformed(f"a frame without JSON: {error}") from error
        if not isinstance(message, dict):
            raise Malformed("a frame without a JSON object")
        following = bytes(content[end : end + rows])
        del content[: end + rows]
        return message, following


# -- appends ----------------------------------------------------------------------------------------------------------


def append_frame(
    table: ObjectId, number: int, rows: Rows, key: SharedKey | None, upsert: SentUpsert | None = None
) -> bytes | None:
    """Return the frame of an append or upsert; None if it is too large to be sent."""
    if rows.count > ROWS_WITHOUT_BYTES or rows.size > MOST_ROWS_BYTES:
        return None
    content = rows.encoded
    if content is None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.table)
        content = sink.getvalue().to_pybytes()
    named = None if key is None else [key.name.hex(), key.request.hex(), key.request_name]
    text: dict[str, Any] = {"append": number, "table": table.key, "key": named}
    if upsert is not None:
        text["upsert"] = [upsert.on, upsert.use_index, upsert.seconds]
    return frame(text, content) if len(content) <= MOST_ROWS_BYTES else None


def append_of(message: Mapping[str, Any], content: bytes) -> tuple[ObjectId, Rows, SharedKey | None, SentUpsert | None]:
    """Return the table, rows and key of an append, and how to upsert its rows.

    Raises:
        InvalidInput: They cannot be understood.
    """
    try:
        named = message["key"]
        key = None
        if named is not None:
            name, request, request_name = named
            key = SharedKey(bytes.fromhex(name), bytes.fromhex(request), request_name)
            if not key.is_valid or type(request_name) is not str:
                raise ValueError("an idempotency key of another length")
        if type(message["table"]) is not str:
            raise TypeError("the table is not text")
        table = ObjectId.of(message["table"], _DELIMITER)
        upsert = _upsert_of(message.get("upsert"))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"not an append: {error}") from error
    _check_sizes(content)
    rows = table_of(stream_of(content))
    if rows.num_rows == 0:
        raise InvalidInput("an append without rows")
    return table, Rows(rows, rows.num_rows, rows.nbytes), key, upsert


def _upsert_of(found: Any) -> SentUpsert | None:
    """Return how to upsert rows. Raises `TypeError` and `ValueError`."""
    if found is None:
        return None
    on, use_index, seconds = found
    if type(on) is not list or not on or not all(type(name) is str for name in on):
        raise TypeError("the key columns are not a list of names")
    if type(use_index) is not bool or type(seconds) not in (int, float) or not 0 <= seconds < inf:
        raise TypeError("an upsert with a field of another type")
    return SentUpsert(tuple(on), use_index, seconds)


def _check_sizes(content: bytes) -> None:
    """Check what the messages of a stream state, so that few bytes cannot stand for many values."""
    position = 0
    while position + HEAD.size <= len(content):
        first, size = struct.unpack_from("<II", content, position)
        start = position + HEAD.size + size
        if first != CONTINUATION or start > len(content):
            raise InvalidInput("the rows of an append are not an Arrow IPC stream")
        if size == 0:
            return
        message = message_of(content[position + HEAD.size : start])
        most = max((message.rows, *message.lengths))
        if message.is_compressed or most > ROWS_WITHOUT_BYTES + 8 * message.body_size:
            raise InvalidInput(
                f"a message of the rows is compressed, or states {most} values in {message.body_size} bytes"
            )
        position = start + message.body_size


# -- replies ----------------------------------------------------------------------------------------------------------


def token_frame(
    numbers: Sequence[int], token: CommitToken, counts: Sequence[MergeCounts] = (), acknowledge: int | None = None
) -> bytes:
    """Return the frame that announces a commit.

    With a number, the asker acknowledges it.
    """
    text: dict[str, Any] = {"numbers": numbers, "token": str(token)}
    if counts:
        text["counts"] = [attrs.astuple(each) for each in counts]
    return frame(text if acknowledge is None else {**text, "acknowledge": acknowledge})


def reply_frame(numbers: Sequence[int], reply: Reply) -> bytes:
    """Return the frame of a reply."""
    if isinstance(reply, Declined):
        return frame({"numbers": numbers, "declined": reply.name})
    if isinstance(reply, Committed):
        told = [reply.version, reply.path, reply.size, reply.transaction]
        return frame({"numbers": numbers, "committed": told})
    unknown = next((each for each in causes(reply) if isinstance(each, CommitUnknown)), None)
    if unknown is not None:
        return frame({"numbers": numbers, "unknown": str(unknown.token), "message": str(unknown)})
    name = next((kind.__name__ for kind in type(reply).__mro__ if _ERRORS.get(kind.__name__) is kind), "")
    return frame({"numbers": numbers, "error": name, "message": str(reply) if name else repr(reply)})


def numbers_of(message: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the appends of a token or a reply.

    Raises:
        Malformed: There are none.
    """
    numbers = message.get("numbers")
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise Malformed("a reply without the numbers of appends")
    return numbers


def token_of(message: Mapping[str, Any]) -> CommitToken | None:
    """Return the token that a frame announces; None if the frame is a reply.

    Raises:
        Malformed: The token cannot be parsed.
    """
    text = message.get("token")
    try:
        return None if text is None else CommitToken.parse(text)
    except (InvalidInput, TypeError) as error:
        raise Malformed(f"a token that cannot be parsed: {error}") from error


def counts_of(message: Mapping[str, Any], numbers: Sequence[int]) -> Sequence[MergeCounts]:
    """Return the counts that a frame announces for each number; none for appends.

    Raises:
        Malformed: They cannot be understood.
    """
    found = message.get("counts", [])
    try:
        if any(type(count) is not int or count < 0 for each in found for count in each):
            raise ValueError("a count is not a number")
        counts = [MergeCounts(*each) for each in found]
    except (TypeError, ValueError) as error:
        raise Malformed(f"counts that cannot be understood: {error}") from error
    if counts and len(counts) != len(numbers):
        raise Malformed(f"{len(counts)} counts of {len(numbers)} upserts")
    return counts


def reply_of(message: Mapping[str, Any], announced: CommitToken | None) -> Reply:
    """Return a reply.

    Args:
        message: The frame.
        announced: The last token of the append. Without one, nothing was committed.

    Raises:
        Malformed: The reply cannot be understood.
    """
    try:
        if "declined" in message:
            return Declined[message["declined"]]
        if "committed" in message:
            version, path, size, transaction = message["committed"]
            if [type(each) for each in (version, path, size, transaction)] != [int, str, int, str]:
                raise TypeError("a field is of another type")
            return Committed(version, path, size, transaction)
        text = message["message"]
        if type(text) is not str:
            raise TypeError("the message is not text")
        if "unknown" in message:
            return CommitUnknown(text, CommitToken.parse(message["unknown"]))
        kind = _ERRORS.get(message["error"])
    except (KeyError, TypeError, ValueError, LancekeepError) as error:
        raise Malformed(f"a reply that cannot be understood: {error!r}") from error
    if kind is not None:
        return kind(text)
    return unknown_reply(f"the committer of the table failed: {text}", announced)


def unknown_reply(reason: str, announced: CommitToken | None) -> Reply:
    """Return the reply to an append of which nothing but the last token is known."""
    if announced is None:
        return LancekeepError(f"{reason}. Nothing was committed")
    return CommitUnknown(
        f"{announced.staged.base_uri}: whether version {announced.staged.version} was committed is not known: "
        f"{reason}. Settle it with catalog.resolve(error.token)",
        announced,
    )


# -- links ------------------------------------------------------------------------------------------------------------


def acknowledgement(message: Mapping[str, Any]) -> int | None:
    """Return the number of a token or of its acknowledgement; None without one."""
    number = message.get("acknowledge")
    return number if type(number) is int else None
