"""What a page shows of a table whose stored data cannot be read."""

from __future__ import annotations

import attrs
from starlette.responses import Response

from lancekeep.domain.errors import Damaged, EngineFailed, LancekeepError, ObjectNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.formats import command
from lancekeep.entrypoints.page.request import PageRequest

FINDINGS = (Damaged, EngineFailed, ObjectNotFound)
"""Errors about stored data, which a page shows as its content."""


@attrs.frozen
class FindingView:
    """A table that cannot be read.

    Attributes:
        id: The table.
        problem: What cannot be read.
        check: The command that examines the table.
        repair: The command that repairs what can be repaired.
    """

    id: ObjectId
    problem: str
    check: str
    repair: str


def finding(request: PageRequest, error: LancekeepError) -> Response:
    """Answer with what was found instead of the view of a table."""
    root, name = request.catalog.root_uri, str(request.object_id)
    view = FindingView(
        request.object_id, str(error), command("fsck", root, table=name), command("repair", root, table=name)
    )
    tab = request.path.removeprefix(request.prefix).split("/")[3:4]
    return request.render("finding.html", view=view, tab=tab[0] if tab else "")
