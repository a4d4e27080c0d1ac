"""Behaviours of materialized views."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import OTHERS, ROWS, Bench, claim
from lancekeep.testing.behaviours.registry import DATA, PROPERTIES, VIEWS, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add


def view(bench: Bench, **query: Any) -> dict[str, Any]:
    """Return a request for the view ``v`` of the rows of ``t`` above 1."""
    source = {"table": bench.at("t"), "filter": "a > 1", **query}
    schema = b64encode(ROWS.schema.serialize()).decode()
    return {"id": bench.at("v"), "kind": "query", "source_query": json.dumps(source), "output_schema": schema}


@behaviour("views/refresh", "RefreshMaterializedView: Trigger an asynchronous refresh job for materialized view `id`.",
           VIEWS, PROPERTIES, DATA, below_too=False)  # fmt: skip
def _refresh(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("create_materialized_view", **view(bench))
    claim(bench.rows("v") == [], "a view that is created with no data has rows")
    claim(bench.other.ask("refresh_materialized_view", id=bench.at("v")).job_id, "`job_id` is null")
    claim(bench.rows("v") == [2, 3], "the view has other rows than its query")
    bench.one.ask("insert_into_table", id=bench.at("t"), data=OTHERS)
    bench.one.ask("refresh_materialized_view", id=bench.at("v"))
    claim(bench.rows("v") == [2, 3, 4], "the view has other rows after its source has grown")
    bench.one.ask("refresh_materialized_view", id=bench.at("v"), src_version=1)
    claim(bench.rows("v") == [2, 3], "the view has other rows than its query of an earlier version")


@behaviour("views/refused", "CreateMaterializedView, RefreshMaterializedView: 4 (TableNotFound), 5 "
           "(TableAlreadyExists), 13 (InvalidInput).", VIEWS, PROPERTIES, below_too=False)  # fmt: skip
def _refused_view(bench: Bench) -> None:
    bench.create("t")
    absent, invalid = errors.TableNotFoundError, errors.InvalidInputError
    bench.one.refused("create_materialized_view", absent, **view(bench, table=bench.at("missing")))
    bench.one.refused("create_materialized_view", invalid, **view(bench, filter="a = = 1"))
    bench.one.refused("create_materialized_view", errors.TableAlreadyExistsError, **view(bench) | {"id": bench.at("t")})
    bench.one.refused("refresh_materialized_view", absent, id=bench.at("missing"))
    bench.one.refused("refresh_materialized_view", invalid, id=bench.at("t"))
    claim(bench.tables() == ["t"], "a view is created all the same")
