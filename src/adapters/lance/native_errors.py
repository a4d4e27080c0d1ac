"""The errors of the native engine, which are texts, as errors of Lancekeep."""

from __future__ import annotations

import errno
import re

from lancekeep.domain.errors import (
    AccessDenied,
    ColumnNotFound,
    CommitRefused,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    SchemaMismatch,
    StoreUnavailable,
    TableAlreadyExists,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.features import FENCE

_SOURCE = re.compile(r"(,\s*(location:\s*)?\S+\.rs:\d+:\d+)+$")
"""Where in the engine's own sources an error was raised and wrapped, which it puts at the end of its messages."""

_MOST_CHARACTERS = 2000
"""The most characters of the beginning and of the end of a message; the middle may quote megabytes of the caller."""

_UNKNOWN = re.compile(r"Commit result for version (\d+) is unknown")
_BEFORE_THE_CAUSE = re.compile(rf"^.*?{_UNKNOWN.pattern}(: [^:]*before retrying)?: ", re.DOTALL)

_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_DENIED_NUMBERS = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
_LATER_NUMBERS = frozenset(
    (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EBUSY,
        errno.EIO,
        errno.ESTALE,
        errno.EPIPE,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ETIMEDOUT,
    )
)

_NEVER_WRITTEN = "v1 dictionary field"
"""The engine refuses such a manifest while it encodes it, and calls the outcome of the commit unknown."""

_STORAGE = r"\A(?=.*(LanceError\(IO\)|Generic \w+ error|HTTP error)).*?"
"""Only the storage's own faults are meant, not a name in the user's data."""

_MEANINGS: tuple[tuple[re.Pattern[str], type[LancekeepError], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), meaning, advice)
    for pattern, meaning, advice in (
        (
            # Seen for deletes and updates in the file format 0.1, whose readers give rows in no order.
            r"^Query Execution error: Execution error: integers are ordered up to",
            Unsupported,
            "in the file format 0.1, the engine cannot change rows by an index that lacks some rows; nothing was "
            "changed. Add them to the index by merge_indexes, or drop the index",
        ),
        (
            # First of the others, because its texts quote values of rows.
            r"^(External error: )?(Query Execution error: (Error applying filter expression to batch: (Arrow|Execution)"
            r"|Execution) error|LanceError\(Arrow\): (Divide by zero|Arithmetic overflow|Cast|Compute|Parser) error)",
            InvalidInput,
            "an expression has no value for a row; nothing was changed. Exclude such rows, or use NULLIF or TRY_CAST",
        ),
        (
            _NEVER_WRITTEN,
            InvalidInput,
            "the engine cannot write a column of dictionaries without values in the file format 0.1; nothing was "
            "committed. Copy the table to one with the file format 2.0 or later",
        ),
        (
            # A strict commit of version 1 looks for its base, version 0, and finds version 1.
            r"^Dataset already exists|/_versions/0\.manifest was not found",
            TableAlreadyExists,
            "another writer created its first version; write to it, or choose another name",
        ),
        (
            rf"cannot be (?:written|read) by this version of Lance.*Flags: {FENCE // 1000}\d{{3}}\b",
            ConcurrentModification,
            "the table is being moved to another place, or was moved; nothing was committed. Open it again",
        ),
        (
            "^(Retryable commit conflict|Commit conflict for version|Too many concurrent writers)",
            ConcurrentModification,
            "other writers kept changing it; nothing was committed",
        ),
        (
            "^Incompatible transaction",
            CommitRefused,
            "another writer has changed the table in a way that this change cannot follow; nothing was committed. Open "
            "it again, and repeat the change if it still means the same",
        ),
        (
            _STORAGE
            + r"(\b40[13] (Forbidden|Unauthorized)|permission ?denied|unauthenticated|<Code>(AccessDenied|InvalidToken|"
            r"ExpiredToken|InvalidAccessKeyId|SignatureDoesNotMatch)</Code>)",
            AccessDenied,
            "the storage refused; check the credentials and what they permit",
        ),
        (
            _STORAGE + r"(error sending request|server error|after \d+ retries|operation timed out|dns error|"
            r"connection (refused|reset|closed)|\b(429|50[0234]) |"
            r"<Code>(SlowDown|InternalError|ServiceUnavailable|RequestTimeout)</Code>)",
            StoreUnavailable,
            "the storage did not answer, or cannot now; call again later",
        ),
        ("^Not supported", Unsupported, ""),
        ("different schema", SchemaMismatch, ""),
        ("not found", VersionNotFound, ""),
        # A text that can be no tag.
        ("^Ref is invalid", InvalidInput, ""),
    )
)
"""A part of the engine's message, the error for the caller, and the text to add. The first match decides."""

_OF_THE_CALLER = re.compile("schema|invalid", re.IGNORECASE)


_COLUMN = re.compile(
    "no field named|FieldNotFound|column .* (not found|does not exist|is not in the dataset)|not exist in the dataset",
    re.IGNORECASE,
)

_OF_THE_QUERY = ("Invalid user input", "LanceError(Index)")
"""The beginnings of messages about a query, which some calls raise as OSError."""


def _text_of(error: Exception) -> str:
    """Return the message of an error in a length that patterns read quickly."""
    text = str(error)
    if len(text) > 2 * _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]} … {text[-_MOST_CHARACTERS:]}"
    return _SOURCE.sub("", text)


def leaves_unknown(error: Exception) -> bool:
    """Return whether the engine could not read the version that it tried to commit.

    The engine says so, too, if the commit was refused and a clean-up has removed the other writer's version since.
    """
    return _UNKNOWN.search(str(error)) is not None


def query_error(name: str, error: Exception) -> LancekeepError:
    """Return the Lancekeep error for an error of a native query.

    ``name`` is the table.
    """
    text = _text_of(error)
    if "LanceError(IO)" in text or (isinstance(error, OSError) and not text.startswith(_OF_THE_QUERY)):
        found = classified(name, error, reading=True)
        return Damaged(str(found)) if isinstance(found, VersionNotFound) else found
    if _COLUMN.search(text):
        return ColumnNotFound(f"{name}: {text}")
    return InvalidInput(f"{name}: {text}")


def classified(name: str, error: Exception, *, reading: bool, unasked: bool = False) -> LancekeepError:
    """Return the Lancekeep error for an error of the native engine.

    ``name`` is the table. While ``reading``, the engine got no data of the caller, so invalid data is stored data.
    ``unasked``: the engine has not asked for a version, so what it calls unknown was not committed.
    """
    text = _text_of(error)
    if unasked or _NEVER_WRITTEN in text:
        text = _BEFORE_THE_CAUSE.sub("", text)
    if (unknown := _UNKNOWN.search(text)) is not None:  # the storage manages the version, so there is no token
        return StoreUnavailable(
            f"{name}: the storage did not answer, so version {unknown[1]} may have been committed. Read the table's "
            f"history before you write again: {text}"
        )
    number = _OS_ERROR.search(text)
    if number is not None and int(number[1]) in _DENIED_NUMBERS:
        return AccessDenied(f"{name}: {text}. This process has to be allowed to read and write there")
    if number is not None and int(number[1]) in _LATER_NUMBERS:
        return StoreUnavailable(f"{name}: {text}. Nothing was committed unless the version is there; call again later")
    for pattern, meaning, advice in _MEANINGS:
        if pattern.search(text):
            return meaning(": ".join(part for part in (name, advice, text) if part))
    if not reading and (isinstance(error, ValueError) or _OF_THE_CALLER.search(text)):
        return InvalidInput(f"{name}: {text}")
    return Damaged(f"{name}: {text}")
