"""How long a caller waits for an operation."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from lance_namespace.errors import ErrorCode

from lancekeep.adapters.rest.routes import READS
from lancekeep.domain.rights import OF_ADMINS
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.idempotency import HEADER as KEY
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.settings import ServerSettings

HEADER = "x-request-timeout"
"""The header in which a caller gives the seconds that it waits; the server's own limit stays in force."""

_SECONDS = re.compile("[0-9]{1,6}([.][0-9]{1,3})?")
LONG: Final = frozenset(
    (
        "alter_table_add_columns",
        "alter_table_alter_columns",
        "alter_table_backfill_columns",
        "analyze_table_query_plan",
        "count_table_rows",
        "create_materialized_view",
        "create_table",
        "create_table_index",
        "create_table_scalar_index",
        "delete_from_table",
        "insert_into_table",
        "merge_insert_into_table",
        "query_table",
        "refresh_materialized_view",
        "update_table",
    )
)
"""The operations that read or write rows: their time grows with the table or the request."""


@asynccontextmanager
async def deadline(call: Call, settings: ServerSettings) -> AsyncIterator[None]:
    """Answer 504 if an operation takes too long.

    The operation continues if its engine cannot be stopped. A batch ends before its next member.

    Raises:
        HttpError: The header is malformed (400), or the time is over (504).
    """
    seconds = float(settings.long_seconds if call.operation in LONG else settings.operation_seconds)
    given = call.headers.get(HEADER)
    if given is not None:
        if not _SECONDS.fullmatch(given) or not float(given):
            raise HttpError(400, f"The header X-Request-Timeout is {given[:100]!r}; give a number of seconds above 0.")
        seconds = min(seconds, float(given))
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        call.progress.end()
        raise HttpError(504, _explained(call, seconds), ErrorCode.SERVICE_UNAVAILABLE) from error


def _explained(call: Call, seconds: float) -> str:
    over = f"{call.route.operation_id} took longer than {seconds:g} seconds."
    if call.operation in READS:
        return over
    if call.operation in OF_ADMINS:
        return f"{over} Its outcome is unknown; read the keys or the policy before you repeat it."
    if KEY in call.headers:
        return f"{over} Its outcome is unknown; repeat the request with the same Idempotency-Key to learn it."
    return f"{over} Its outcome is unknown; look at the object, and send an Idempotency-Key to be able to repeat it."
