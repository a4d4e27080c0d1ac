"""Errors that the native engine raises in a call, as errors of Lancekeep."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lancekeep.adapters.lance.channels import Reads, moved_during_write, moved_elsewhere
from lancekeep.adapters.lance.namespace_errors import is_namespace_error
from lancekeep.adapters.lance.native_errors import classified, leaves_unknown
from lancekeep.adapters.lance.panics import panics_translated
from lancekeep.domain.errors import (
    ConcurrentModification,
    LancekeepError,
    TableNotFound,
    VersionNotFound,
    VersionTaken,
    origin,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.native import lance

_VANISHED = re.compile(r"\(os error 2\)|not found|Invalid range", re.IGNORECASE)
"""Part of the engine's message if a directory that it reads or writes was removed or renamed.

The fence of a table that moved becomes shorter, so a reader may ask for bytes behind its end.
"""


def _without_disguise(error: LancekeepError) -> LancekeepError:
    """Return that a table does not exist, which native code learns as `Refused`."""
    return error.__cause__ if isinstance(error.__cause__, TableNotFound) else error


@contextmanager
def translated(table: ObjectId, channel: Reads, *, reading: bool = False, managed: bool = False) -> Iterator[None]:
    """Raise errors of the native engine as Lancekeep errors.

    While ``reading``, no error is the caller's fault. ``managed``: the engine commits through the channel alone.
    """
    try:
        with panics_translated(str(table)):
            yield
    except LancekeepError:
        raise
    except lance.commit.CommitConflictError as error:
        if channel.error is not None and not isinstance(channel.error, VersionTaken):
            raise channel.error from origin(channel.error, error)
        raise ConcurrentModification(
            f"{table}: other writers kept changing it; nothing was committed: {error}"
        ) from error
    except Exception as error:
        if is_namespace_error(error):  # from a callback on the caller's own thread
            if isinstance(error.__cause__, LancekeepError):
                raise error.__cause__ from error.__cause__.__cause__
            if is_namespace_error(error, "TableVersionNotFoundError"):  # the version that a plan builds on
                raise VersionNotFound(f"{table}: {error}; nothing was committed") from error
            raise
        if not isinstance(error, OSError | ValueError | RuntimeError):
            raise
        if channel.error is not None and not isinstance(channel.error, VersionTaken):
            raise channel.error from origin(channel.error, error)
        if channel.error is not None and leaves_unknown(error):
            raise ConcurrentModification(f"{table}: {channel.error}") from error
        cause = error.__cause__
        if isinstance(cause, LancekeepError):
            raise cause from cause.__cause__
        unasked = (managed or channel.is_asked) and not channel.is_tried
        may_be_committed = channel.committed is not None or (leaves_unknown(error) and not unasked)
        if _VANISHED.search(str(error)) and not may_be_committed:
            if channel.is_elsewhere(table):
                raise moved_elsewhere(table) from error
            if channel.has_moved(table):
                if reading:
                    raise TableNotFound(f"the table {table} was dropped or renamed while it was read") from error
                raise moved_during_write(table) from error
        if channel.met is not None and str(channel.met) in str(error):
            met = _without_disguise(channel.met) if reading else channel.met
            raise met from origin(met, error)
        raise classified(str(table), error, reading=reading, unasked=unasked) from error
