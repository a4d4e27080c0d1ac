"""What is used of quotas, as operators see it, and quotas in each home of entries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from home_kinds import home_of
from quota_sites import FAST, ROWS, Site, refused, site_of, stream

import lancekeep
from lancekeep.adapters.rest.routes import ListQuotasResponse
from lancekeep.application.catalog import directory_of
from lancekeep.domain.quotas import Held
from lancekeep.entrypoints.cli import lancekeep as command

QUOTAS = ('on = "ml"\ntables = 4\nbytes = 1_000_000', 'on = "other"\ntables = 1', 'on = "ml.a"\nbytes = 10')
READER = '\n[[grants]]\nrole = "read"\non = "other"\nprincipals = ["key:guest"]\n'
WRITERS = 8


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    def connect() -> lancekeep.Catalog:
        return lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://", storage_options=FAST)

    with site_of(connect, tmp_path, ("ml", "ml.a", "other")) as site:
        site.limit(*QUOTAS, 'on = ""\nbytes = "1 TB"', more=READER)
        yield site


def shown(site: Site, who: str, query: str = "") -> dict[int, dict[str, Any]]:
    """Return the quotas in the answer to a caller, by their numbers."""
    answer = site.client.get(f"{site.uris[0]}/v1/quotas{query}", headers={"x-api-key": site.keys[who]})
    assert answer.status_code == 200, answer.text
    ListQuotasResponse.model_validate(answer.json(), extra="forbid")
    return {each.pop("quota"): each for each in answer.json()["quotas"]}


def test_caller_sees_the_quotas_of_what_it_may_describe(site: Site) -> None:
    unmeasured = {"id": ["ml"], "max_tables": 4, "max_bytes": 1_000_000}
    assert shown(site, "team") == {1: unmeasured, 3: {"id": ["ml", "a"], "max_bytes": 10}}
    site.measure()
    size = site.held("ml").bytes or 0
    found = shown(site, "root")
    assert list(found) == [1, 2, 3, 4]
    measured = found[1].pop("measured")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", measured)
    assert found[1] == unmeasured | {"tables": 1, "bytes": size, "share": 0.25}
    assert found[2] == {"id": ["other"], "max_tables": 1, "tables": 1, "share": 1.0, "measured": measured}
    assert found[4]["tables"] == 2
    assert list(shown(site, "team")) == [1, 3]
    assert list(shown(site, "guest")) == [2, 3]
    assert list(shown(site, "root", "?id=ml")) == [1, 3]
    assert list(shown(site, "guest", "?id=other")) == [2]
    hidden = site.client.get(f"{site.uris[0]}/v1/quotas?id=other", headers={"x-api-key": site.keys["team"]})
    assert (hidden.status_code, hidden.json()["code"]) == (404, 1)
    site.limit(*QUOTAS[:1], more='\n[[grants]]\nrights = ["append"]\non = ""\nprincipals = ["key:guest"]\n')
    assert 1 not in shown(site, "guest")  # who only appends may not describe


def metrics(site: Site, server: int = 0) -> dict[str, float]:
    text = site.client.get(f"{site.uris[server]}/metrics").text
    return {name: float(value) for name, value in re.findall(r"^lancekeep_quota_(\S+) ([\d.e+]+)$", text, re.MULTILINE)}


def test_metrics_have_each_quota_and_its_refusals(site: Site) -> None:
    assert "measurement_age_seconds" not in metrics(site)
    site.measure()
    size = site.held("ml").bytes
    before = metrics(site)
    assert before.pop("measurement_age_seconds") < 60
    assert before == {
        'limit{quota="1",resource="tables"}': 4,
        'limit{quota="1",resource="bytes"}': 1_000_000,
        'limit{quota="2",resource="tables"}': 1,
        'limit{quota="3",resource="bytes"}': 10,
        'limit{quota="4",resource="bytes"}': 1e12,
        'used{quota="1",resource="tables"}': 1,
        'used{quota="1",resource="bytes"}': size,
        'used{quota="2",resource="tables"}': 1,
        'used{quota="3",resource="bytes"}': 0,
        'used{quota="4",resource="bytes"}': site.held("").bytes,
        'refusals_total{quota="1",resource="tables"}': 0,
        'refusals_total{quota="1",resource="bytes"}': 0,
        'refusals_total{quota="2",resource="tables"}': 0,
        'refusals_total{quota="3",resource="bytes"}': 0,
        'refusals_total{quota="4",resource="bytes"}': 0,
    }
    for _ in range(2):
        assert site.ask("/v1/table/other$new/declare", who="root").status_code == 403
    assert site.ask("/v1/table/other$t/describe").status_code == 404  # of authorization, and no quota
    site.limit('on = "ml"\nbytes = 1')
    site.measure()
    refused(site.ask("/v1/table/ml$t/insert", stream()))
    assert site.ask("/v1/table/ml$t/delete", {"predicate": "id = 1"}).status_code == 200
    refused(site.ask("/v1/table/ml$t/insert?mode=overwrite", stream(pa.table({"id": range(1000)}))))
    after = metrics(site)
    assert after['refusals_total{quota="2",resource="tables"}'] == 2
    assert after['refusals_total{quota="1",resource="bytes"}'] == 2
    assert metrics(site, 1)['refusals_total{quota="1",resource="bytes"}'] == 0


def run(*line: str, **environment: str) -> Result:
    return CliRunner().invoke(command, ["quotas", *line], obj=lancekeep, env=environment)


def test_the_command_measures_a_directory_and_asks_a_server(site: Site) -> None:
    lake, policy = str(site.folder / "lake"), str(site.folder / "policy.toml")
    local = run(lake, "--policy", policy, "-o", "json")
    assert local.exit_code == 0, local.output
    rows = json.loads(local.stdout)
    size = site.held("ml").bytes or 0
    assert rows[0] | {"measured": ""} == {
        "quota": 1,
        "on": "ml",
        "tables": 1,
        "most tables": 4,
        "bytes": size,
        "most bytes": 1_000_000,
        "used": 0.25,
        "measured": "",
    }
    assert [row["on"] for row in rows] == ["ml", "other", "ml.a", str(lancekeep.ObjectId())]
    assert [row["used"] for row in rows[1:3]] == [1.0, 0.0]
    table = run(lake, "--policy", policy)
    assert (table.exit_code, "25%" in table.stdout, "100%" in table.stdout) == (0, True, True), table.output
    site.measure()
    served = run(site.uris[0], "-o", "json", LANCEKEEP_REST__API_KEY=site.keys["team"])
    assert served.exit_code == 0, served.output
    assert [row | {"measured": ""} for row in json.loads(served.stdout)] == [
        rows[at] | {"measured": ""} for at in (0, 2)
    ]
    for line, message in (
        ((lake,), "ame the file by --policy"),
        ((site.uris[0], "--policy", policy), "has a policy of its own"),
    ):
        result = run(*line, LANCEKEEP_REST__API_KEY=site.keys["team"])
        assert (result.exit_code, message in " ".join(result.output.split())) == (2, True), result.output


def test_listing_ends_when_it_is_not_wanted_any_more(site: Site) -> None:
    usage, asked = directory_of(site.catalog).usage, iter([True, False])
    quotas = [lancekeep.Quota(lancekeep.ObjectId(), bytes=1)]
    [held] = usage.measure(quotas, lambda: next(asked, False)).values()
    assert 0 < (held.bytes or 0) < (site.held("").bytes or 0)


def test_server_without_a_policy_has_no_quotas(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), storage_options=FAST) as catalog:
        with pytest.raises(lancekeep.InvalidInput, match="pass the quotas of a policy"):
            catalog.upkeep.quotas()
        catalog.write("t", ROWS)
        [usage] = catalog.upkeep.quotas([lancekeep.Quota(lancekeep.ObjectId(), tables=2)])
        assert (usage.tables, usage.bytes, usage.share) == (1, None, 0.5)


# -- homes ---------------------------------------------------------------------------------------------------------


@contextmanager
def site_in(kind: str, tmp_path: Path, server: Callable[[str], str]) -> Iterator[Site]:
    """Two servers over a home; a Metastore has one level of namespaces."""
    home = home_of(kind, tmp_path, server)
    with site_of(home.connect, tmp_path, ("ml", "other")) as site:
        yield site


@pytest.mark.parametrize("kind", ["postgres", "hive"])
def test_clients_race_at_the_limit_of_a_home(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with site_in(kind, tmp_path, request.getfixturevalue) as site:
        site.limit('on = "ml"\ntables = 4')
        barrier = Barrier(WRITERS)

        def create(number: int) -> httpx.Response:
            barrier.wait()
            path = f"/v1/table/ml$n{number}"
            if number % 4 < 2:
                return site.ask(f"{path}/create", stream(), server=number // 4)
            return site.ask(f"{path}/declare", server=number // 4)

        with ThreadPoolExecutor(WRITERS) as pool:
            answers = list(pool.map(create, range(WRITERS)))
        made = {f"ml.n{number}" for number, answer in enumerate(answers) if answer.status_code == 200}
        for answer in answers:
            if answer.status_code != 200:
                refused(answer, "4 tables for ml. It has ", " tables, and the request adds 1")
        assert len(made) == 3
        assert set(site.tables()) == made | {"ml.t", "other.t"}
        assert site.held("ml").tables == 4
        for server in range(2):
            refused(site.ask("/v1/table/ml$more/declare", server=server))
        site.catalog.drop_table(min(made), keep=0)
        assert site.ask("/v1/table/ml$more/declare", server=1).status_code == 200
        refused(site.ask("/v1/table/ml$again/declare"))


@pytest.mark.parametrize("kind", ["postgres", "hive"])
def test_clients_add_no_bytes_to_a_full_subtree_of_a_home(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with site_in(kind, tmp_path, request.getfixturevalue) as site:
        site.catalog.write("ml.u", ROWS)
        site.limit(f'on = "ml"\nbytes = {site.held("ml").bytes}')
        site.measure()
        stored, version = site.stored(), site.catalog.describe_table("ml.t").version
        barrier = Barrier(WRITERS)

        def insert(number: int) -> httpx.Response:
            barrier.wait()
            return site.ask(f"/v1/table/ml${'tu'[number % 2]}/insert", stream(), server=number // 4)

        with ThreadPoolExecutor(WRITERS) as pool:
            answers = list(pool.map(insert, range(WRITERS)))
        for answer in answers:
            refused(answer, "bytes for ml. Its tables had ")
        assert site.catalog.describe_table("ml.t").version == version
        assert {path: each for path, each in site.stored().items() if "/lake/" in path} == stored
        held = site.held("ml")
        site.catalog.drop_table("ml.u")
        kept = site.catalog.list_dropped("ml.u")
        assert site.held("ml") == Held(1, held.bytes if kept else site.held("ml.t").bytes)
        if kept:
            site.catalog.purge("ml.u")
        site.measure()
        assert site.ask("/v1/table/ml$t/insert", stream()).status_code == 200
