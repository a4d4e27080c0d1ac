"""What the refusals of a Metastore mean."""

from __future__ import annotations

from lancekeep.domain.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidInput,
    LancekeepError,
    NotFound,
    Refused,
    StoreUnavailable,
)
from lancekeep.hive import messages


class ReplyLost(StoreUnavailable):
    """A change was sent, and no reply arrived.

    Its outcome is unknown until the object is read.
    """

    @property
    def late(self) -> bool:
        """Whether the time of the call is over, rather than its connection broken."""
        return isinstance(self.__cause__, TimeoutError)


class ObjectMissing(NotFound):
    """The Metastore has no such database, table or catalog."""


class ObjectExists(AlreadyExists):
    """The Metastore has a database, table or catalog of this name."""


class Modified(Refused):
    """The table is not in the expected state: the compare-and-set changed nothing."""


_RIGHTS = "Check the user, and its privileges in the Metastore"
_LONG = "A value is longer than a column of the Metastore's database"

_MEANINGS: tuple[tuple[str, str, type[LancekeepError], str], ...] = (
    (messages.META, "has been modified", Modified, ""),
    (messages.TAKEN, "", ObjectExists, ""),
    *(("", index, ObjectExists, "") for index in ("uniquedatabase", "unique_database", "uniquetable", "unique_table")),
    (messages.MISSING, "", ObjectMissing, ""),
    (messages.UNKNOWN_DATABASE, "", ObjectMissing, ""),
    ("", "permission denied", AccessDenied, _RIGHTS),
    ("", "accesscontrolexception", AccessDenied, _RIGHTS),
    ("", "no privilege", AccessDenied, _RIGHTS),
    ("", "not authorized", AccessDenied, _RIGHTS),
    ("", "does not have privileges", AccessDenied, _RIGHTS),
    ("", "authorizationexception", AccessDenied, _RIGHTS),
    ("", "authorization failed", AccessDenied, _RIGHTS),
    ("", "truncation error", InvalidInput, _LONG),
    ("", "data too long", InvalidInput, _LONG),
    ("", "value too long", InvalidInput, _LONG),
    (messages.INVALID_OPERATION, "doesn't exist", ObjectMissing, ""),
    (messages.INVALID_OPERATION, "does not exist", ObjectMissing, ""),
    (messages.INVALID_OPERATION, "not found", ObjectMissing, ""),
    (messages.INVALID_OPERATION, "", Refused, ""),
    (messages.INVALID, "", InvalidInput, ""),
)
"""The exception of the Metastore, a part of its message in lower case, the resulting error and the advice. The first
match decides. Any other refusal, such as a database of the Metastore that does not answer, is `StoreUnavailable`."""


def understood(url: str, exception: str, message: str) -> LancekeepError:
    """Return the error for an exception of the Metastore."""
    text = " ".join(message.split())[:500].rstrip(".") or exception
    for name, part, meaning, advice in _MEANINGS:
        if name in ("", exception) and part in message.lower():
            return meaning(f"{url}: {text}. {advice}.".replace(" .", ""))
    return StoreUnavailable(f"{url}: {exception}: {text}")
