"""The rows of tables through the namespace: streams, branches, errors, upserts under concurrency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from faults import Faulty
from lance_namespace import errors as api_errors
from writers import Call, Peers, stream

import lancekeep
from lancekeep.adapters.lance.rows import LanceRows
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.testing.concurrency import race

NO_VECTOR: Any = {}
STORES = ("sqlite", "conditional-put", "none")
UPSERT: dict[str, Any] = {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True}


def connect(directory: Path, store: str = "conditional-put") -> lancekeep.DirectoryNamespace:
    url = {"sqlite": f"sqlite://{directory}/commits.db", "conditional-put": "conditional-put://"}.get(store)
    properties = {} if url is None else {"commit_store": url}
    return lancekeep.DirectoryNamespace(root=str(directory / "lake"), **{"storage.fsync": "false"}, **properties)


@pytest.fixture(params=STORES)
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> lancekeep.DirectoryNamespace:
    return connect(tmp_path, request.param)


def people(*ids: int, writer: str = "first") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "writer": [writer] * len(ids)})


def texts() -> pa.Table:
    vectors = pa.array([[0, 0], [1, 0], [0, 2], [3, 3]], pa.list_(pa.float32(), 2))
    lines = ["alpha beta", "beta gamma", "gamma delta", "delta alpha alpha"]
    return pa.table({"id": pa.array([1, 2, 3, 4], pa.int64()), "line": lines, "vector": vectors})


def create(namespace: lancekeep.DirectoryNamespace, data: pa.Table, name: str = "t") -> None:
    namespace.create_table(api.CreateTableRequest(id=[name]), stream(data))


def upsert(namespace: Any, data: pa.Table, **fields: Any) -> api.MergeInsertIntoTableResponse:
    request = api.MergeInsertIntoTableRequest(id=["t"], **{**UPSERT, **fields})
    merged: api.MergeInsertIntoTableResponse = namespace.merge_insert_into_table(request, stream(data))
    return merged


def query(namespace: lancekeep.DirectoryNamespace, **fields: Any) -> pa.Table:
    request = api.QueryTableRequest(**{"id": ["t"], "vector": {}, "k": 0, **fields})
    return pa.ipc.open_file(namespace.query_table(request).data).read_all()


def plain(namespace: lancekeep.DirectoryNamespace, version: int | None = None) -> lance.LanceDataset:
    """The table as plain pylance reads it."""
    return lance.dataset(namespace.catalog.describe_table("t").uri, version=version)


def keys(namespace: lancekeep.DirectoryNamespace, version: int | None = None) -> Counter[int]:
    return Counter(plain(namespace, version).to_table(["id"])["id"].to_pylist())


# -- upserts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Run ``act`` between the first merge's reading and its commit."""

    def install(act: Callable[[], object]) -> None:
        merge, pending = LanceRows.merge, [act]

        def interrupted(self: LanceRows, *given: Any) -> Any:
            commit, counts = merge(self, *given)
            if pending:
                pending.pop()()
            return commit, counts

        monkeypatch.setattr(LanceRows, "merge", interrupted)

    return install


def test_key_that_a_native_writer_inserts_during_a_merge_is_updated(
    namespace: lancekeep.DirectoryNamespace, between: Callable[[Callable[[], object]], None]
) -> None:
    create(namespace, people(1))

    def native_upsert() -> None:
        dataset = lance.dataset(namespace_client=namespace, table_id=["t"])
        dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
            people(2, writer="native")
        )

    between(native_upsert)
    merged = upsert(namespace, people(2, 3, writer="ours"))
    assert (merged.num_updated_rows, merged.num_inserted_rows, merged.version) == (1, 1, 3)
    assert keys(namespace) == Counter({1: 1, 2: 1, 3: 1})
    assert plain(namespace).to_table(filter="id = 2")["writer"].to_pylist() == ["ours"]


def test_key_that_is_appended_or_restored_during_a_merge_is_updated(
    namespace: lancekeep.DirectoryNamespace, between: Callable[[Callable[[], object]], None]
) -> None:
    create(namespace, people(1))
    between(lambda: namespace.catalog.write("t", people(2), "append"))
    assert upsert(namespace, people(2, writer="ours")).num_updated_rows == 1
    namespace.delete_from_table(api.DeleteFromTableRequest(id=["t"], predicate="id = 2"))
    between(lambda: namespace.restore_table(api.RestoreTableRequest(id=["t"], version=2)))
    assert upsert(namespace, people(2, writer="ours")).num_updated_rows == 1
    assert keys(namespace) == Counter({1: 1, 2: 1})


def test_merge_that_always_loses_reports_a_conflict_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    namespace = connect(tmp_path)
    create(namespace, people(1))
    merge = LanceRows.merge

    def interrupted(self: LanceRows, *given: Any) -> Any:
        found = merge(self, *given)
        namespace.update_table(api.UpdateTableRequest(id=["t"], updates=[["writer", "'other'"]]))
        return found

    monkeypatch.setattr(LanceRows, "merge", interrupted)
    with pytest.raises(api_errors.ConcurrentModificationError):
        upsert(namespace, people(1, 2), timeout="1ms")
    assert 2 not in keys(namespace)


OTHERS: dict[str, Callable[[lancekeep.DirectoryNamespace], object]] = {
    "appends other keys": lambda ns: [ns.catalog.write("t", people(each), "append") for each in (7, 8)],
    "deletes rows": lambda ns: ns.delete_from_table(api.DeleteFromTableRequest(id=["t"], predicate="id = 2")),
    "creates an index": lambda ns: ns.catalog.open("t").create_scalar_index("writer", "BITMAP"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_merge_runs_once_if_another_writer(
    namespace: lancekeep.DirectoryNamespace,
    monkeypatch: pytest.MonkeyPatch,
    between: Callable[[Callable[[], object]], None],
    other: str,
) -> None:
    namespace.create_table(api.CreateTableRequest(id=["t"]), stream(people(1)))
    namespace.catalog.write("t", people(2), "append")  # in a fragment of its own
    between(lambda: OTHERS[other](namespace))
    interrupted, merges = LanceRows.merge, []

    def counted(self: LanceRows, *given: Any) -> Any:
        merges.append(given)
        return interrupted(self, *given)

    monkeypatch.setattr(LanceRows, "merge", counted)
    assert upsert(namespace, people(1, 3, writer="ours")).num_inserted_rows == 1
    assert len(merges) == 1
    expected = {"appends other keys": [1, 2, 3, 7, 8], "deletes rows": [1, 3], "creates an index": [1, 2, 3]}[other]
    assert keys(namespace) == Counter(expected)
    assert query(namespace, filter="writer = 'ours'")["id"].to_pylist() == [1, 3]


@pytest.mark.parametrize("store", STORES)
def test_racing_merges_insert_each_new_key_once(tmp_path: Path, store: str) -> None:
    namespace = connect(tmp_path, store)
    create(namespace, people(0))
    others = [connect(tmp_path, store) for _ in range(3)]
    for number in range(1, 4):

        def insert(each: int, key: int = number) -> object:
            return upsert(others[each], people(key, key + 100, writer=str(each)))

        race(3, insert)
    assert keys(namespace) == Counter((0, 1, 2, 3, 101, 102, 103))


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    started = Peers(3)
    yield started
    started.close()


@pytest.mark.slow
def test_merges_of_processes_that_race_with_a_native_one_add_no_second_key(tmp_path: Path, peers: Peers) -> None:
    """Two of ours race with a native namespace, whose own merges may insert a key twice."""
    namespace = connect(tmp_path)
    create(namespace, people(0))
    rounds = 12
    properties = {"root": str(tmp_path / "lake"), "commit_store": "conditional-put://"}

    def calls(process: int) -> list[Call]:
        data = [people(each, each + 100, writer=str(process)) for each in range(1, rounds)]
        return [("merge_insert_into_table", {"id": ["t"], **UPSERT, "data": rows}) for rows in data]

    native = (True, {"root": str(tmp_path / "lake")}, calls(0))
    answers = peers.race(native, (False, properties, calls(1)), (False, properties, calls(2)))
    assert {kind for each in answers[1:] for kind, _ in each} == {"ok"}, answers
    ours = sorted(answer["version"] for each in answers[1:] for _, answer in each)
    assert len(set(ours)) == 2 * (rounds - 1)
    for version in ours:
        before, after = keys(namespace, version - 1), keys(namespace, version)
        assert all(count <= max(1, before[key]) for key, count in after.items()), (version, before, after)


# -- inserts -----------------------------------------------------------------------------------------------------


def test_stream_is_inserted_and_queried_in_bounded_memory(tmp_path: Path) -> None:
    namespace = connect(tmp_path)
    batch = pa.record_batch({"id": pa.array(range(100_000), pa.int64()), "text": ["x" * 20] * 100_000})
    batches = 40
    start, peak = pa.total_allocated_bytes(), [0]

    def watched() -> Iterator[pa.RecordBatch]:
        for number in range(batches):
            peak[0] = max(peak[0], pa.total_allocated_bytes() - start)
            yield pa.record_batch({"id": pa.array(range(number, number + len(batch)), pa.int64()), "text": batch[1]})

    reader = pa.RecordBatchReader.from_batches(batch.schema, watched())
    namespace.create_table_stream(api.CreateTableRequest(id=["t"]), reader)
    reader = pa.RecordBatchReader.from_batches(batch.schema, watched())
    inserted = namespace.insert_stream(api.InsertIntoTableRequest(id=["t"]), reader)
    assert inserted.num_inserted_rows == batches * len(batch)
    rows = 0
    for answer in namespace.query_stream(api.QueryTableRequest(id=["t"], vector=NO_VECTOR, k=0)):
        rows += answer.num_rows
        peak[0] = max(peak[0], pa.total_allocated_bytes() - start)
    assert rows == 2 * batches * len(batch)
    assert peak[0] < batches * batch.nbytes / 4, (peak, batch.nbytes)


class _OfTheServer(Exception):
    """What a server raises while it reads a body."""


def test_error_of_the_callers_stream_reaches_the_caller_and_nothing_is_committed(
    namespace: lancekeep.DirectoryNamespace,
) -> None:
    create(namespace, people(1))

    def broken() -> Iterator[pa.RecordBatch]:
        yield people(2).to_batches()[0]
        raise _OfTheServer("the body is too large")

    def reader() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(people(2).schema, broken())

    for call in (
        lambda: namespace.insert_stream(api.InsertIntoTableRequest(id=["t"]), reader()),
        lambda: namespace.insert_stream(api.InsertIntoTableRequest(id=["t"], mode="overwrite"), reader()),
        lambda: namespace.merge_insert_stream(api.MergeInsertIntoTableRequest(id=["t"], **UPSERT), reader()),
        lambda: namespace.create_table_stream(api.CreateTableRequest(id=["u"]), reader()),
    ):
        with pytest.raises(_OfTheServer):
            call()
    assert keys(namespace) == Counter({1: 1})
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["t"]


def test_one_of_racing_inserts_into_a_declared_table_writes_its_first_version(tmp_path: Path) -> None:
    namespaces = [connect(tmp_path) for _ in range(4)]
    namespaces[0].declare_table(api.DeclareTableRequest(id=["t"]))

    def insert(number: int) -> bool:
        try:
            namespaces[number].insert_into_table(api.InsertIntoTableRequest(id=["t"]), stream(people(number)))
        except api_errors.ConcurrentModificationError:
            return False
        return True

    inserted = race(4, insert)
    assert any(inserted)
    assert keys(namespaces[0]) == Counter({number: 1 for number in range(4) if inserted[number]})


def test_branches_change_apart_from_the_main_history(namespace: lancekeep.DirectoryNamespace) -> None:
    create(namespace, people(1))
    namespace.catalog.open("t").create_branch("trial")
    on: dict[str, Any] = {"id": ["t"], "branch": "trial"}
    namespace.insert_into_table(api.InsertIntoTableRequest(**on), stream(people(2)))
    upsert(namespace, people(2, 3, writer="merged"), branch="trial")
    namespace.update_table(api.UpdateTableRequest(**on, updates=[["writer", "'updated'"]], predicate="id = 3"))
    namespace.delete_from_table(api.DeleteFromTableRequest(**on, predicate="id = 1"))
    rows = query(namespace, branch="trial").to_pydict()
    assert rows == {"id": [2, 3], "writer": ["merged", "updated"]}
    assert namespace.count_table_rows(api.CountTableRowsRequest(**on)).count == 2
    assert namespace.get_table_stats(api.GetTableStatsRequest(**on)).num_rows == 2
    namespace.insert_into_table(api.InsertIntoTableRequest(**on, mode="overwrite"), stream(people(9)))
    namespace.restore_table(api.RestoreTableRequest(**on, version=2))
    assert query(namespace, branch="trial")["id"].to_pylist() == [1, 2]
    assert keys(namespace) == Counter({1: 1})
    assert query(namespace, branch="main")["id"].to_pylist() == [1]
    with pytest.raises(api_errors.TableBranchNotFoundError):
        query(namespace, branch="missing")
    with pytest.raises(api_errors.TableBranchNotFoundError):
        namespace.insert_into_table(api.InsertIntoTableRequest(id=["t"], branch="missing"), stream(people(2)))


# -- outcomes ----------------------------------------------------------------------------------------------------


def _outage(namespace: lancekeep.DirectoryNamespace) -> TableCommits:
    """Let the commit store reserve the next version and then stay silent; return the healthy commits."""
    healthy, broken = directory_of(namespace.catalog).commits, [False]

    def down(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "reserve":
            broken[0] = True
            return "after", StoreUnavailable("the reply was lost")
        return ("before", StoreUnavailable("down")) if broken[0] else None

    directory_of(namespace.catalog).ledger.commits = TableCommits(
        Faulty(healthy.objects, down),
        Faulty(healthy.rows, down),
        "tester",
        Retry(0.05, sleep=lambda _: None),
    )
    return healthy


CHANGES: dict[str, Callable[[lancekeep.DirectoryNamespace], object]] = {
    "insert": lambda ns: ns.insert_into_table(api.InsertIntoTableRequest(id=["t"]), stream(people(3))),
    "merge": lambda ns: upsert(ns, people(2, 3)),
    "update": lambda ns: ns.update_table(api.UpdateTableRequest(id=["t"], updates=[["id", "id + 1"]])),
    "delete": lambda ns: ns.delete_from_table(api.DeleteFromTableRequest(id=["t"], predicate="id = 1")),
    "restore": lambda ns: ns.restore_table(api.RestoreTableRequest(id=["t"], version=1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_unknown_change_carries_a_token_that_settles_it_once(tmp_path: Path, change: str) -> None:
    namespace = connect(tmp_path, "sqlite")
    create(namespace, people(1, 2))
    healthy = _outage(namespace)
    with pytest.raises(api_errors.ServiceUnavailableError) as raised:
        CHANGES[change](namespace)
    unknown = raised.value.__cause__
    assert isinstance(unknown, lancekeep.CommitUnknown)
    directory_of(namespace.catalog).ledger.commits = healthy
    assert isinstance(namespace.catalog.resolve(unknown.token), lancekeep.Committed)
    expected = {"insert": [1, 2, 3], "merge": [1, 2, 3], "update": [2, 3], "delete": [2], "restore": [1, 2]}[change]
    assert sorted(keys(namespace).elements()) == expected
    assert len(namespace.catalog.versions.history("t")) == 2


# -- queries -----------------------------------------------------------------------------------------------------


@pytest.fixture
def indexed(tmp_path: Path) -> lancekeep.DirectoryNamespace:
    namespace = connect(tmp_path)
    create(namespace, texts())
    namespace.catalog.open("t").create_scalar_index("line", "INVERTED", with_position=True)
    return namespace


IDS = {"columns": {"column_names": ["id"]}}
FULL_TEXT: dict[str, tuple[dict[str, Any], set[int]]] = {
    "text": ({"string_query": {"query": "alpha"}}, {1, 4}),
    "text of a column": ({"string_query": {"query": "alpha", "columns": ["line"]}}, {1, 4}),
    "match": ({"match": {"terms": "beta", "column": "line"}}, {1, 2}),
    "match all terms": ({"match": {"terms": "beta gamma", "column": "line", "operator": "And"}}, {2}),
    "fuzzy match": ({"match": {"terms": "alphq", "column": "line", "fuzziness": 1}}, {1, 4}),
    "phrase": ({"phrase": {"terms": "gamma delta", "column": "line"}}, {3}),
    "multi match": ({"multi_match": {"match_queries": [{"terms": "delta", "column": "line"}]}}, {3, 4}),
    "boolean": (
        {
            "boolean": {
                "must": [{"match": {"terms": "alpha", "column": "line"}}],
                "must_not": [{"match": {"terms": "beta", "column": "line"}}],
                "should": [],
            }
        },
        {4},
    ),
    "boost": (
        {
            "boost": {
                "positive": {"match": {"terms": "alpha", "column": "line"}},
                "negative": {"match": {"terms": "beta", "column": "line"}},
                "negative_boost": 0.1,
            }
        },
        {1, 4},
    ),
}


@pytest.mark.parametrize("kind", FULL_TEXT)
def test_full_text_queries_find_their_rows(indexed: lancekeep.DirectoryNamespace, kind: str) -> None:
    given, expected = FULL_TEXT[kind]
    text = given if "string_query" in given else {"structured_query": {"query": given}}
    rows = query(indexed, full_text_query=text, **IDS)
    assert set(rows["id"].to_pylist()) == expected
    assert rows.column_names == ["id", "_score"]
    filtered = query(indexed, full_text_query=text, filter="id > 2", prefilter=True, **IDS)
    assert set(filtered["id"].to_pylist()) == {each for each in expected if each > 2}


SEARCHES: dict[str, dict[str, Any]] = {
    "vector": {"vector": {"single_vector": [3.0, 3.0]}, "k": 2},
    "text": {"full_text_query": {"string_query": {"query": "alpha"}}},
    "both": {"vector": {"single_vector": [3.0, 3.0]}, "k": 2, "full_text_query": {"string_query": {"query": "alpha"}}},
}


@pytest.mark.parametrize(
    "columns", [{"column_names": ["id"]}, {"column_aliases": {"number": "id"}}], ids=["names", "aliases"]
)
@pytest.mark.parametrize("kind", SEARCHES)
def test_search_of_some_columns_prints_nothing(
    indexed: lancekeep.DirectoryNamespace, capfd: pytest.CaptureFixture[str], kind: str, columns: dict[str, Any]
) -> None:
    rows = query(indexed, columns=columns, **SEARCHES[kind])
    assert capfd.readouterr().err == "", "the engine prints its warnings as plain text"
    assert rows.num_rows == 2
    assert len(rows.column_names) == 2


def test_search_returns_its_distance_where_the_table_has_a_column_of_scores(tmp_path: Path) -> None:
    namespace = connect(tmp_path)
    create(namespace, texts().append_column("_score", pa.array([0.5] * texts().num_rows)))
    rows = query(namespace, columns={"column_names": ["id", "_score"]}, **SEARCHES["vector"])
    assert rows.column_names == ["id", "_score", "_distance"]
    assert rows["_score"].to_pylist() == [0.5, 0.5]


def test_hybrid_query_ranks_by_both_searches(indexed: lancekeep.DirectoryNamespace) -> None:
    both: dict[str, Any] = {
        "full_text_query": {"string_query": {"query": "alpha"}},
        "vector": {"single_vector": [3.0, 3.0]},
    }
    rows = query(indexed, k=3, **both)
    assert rows.column_names == ["id", "line", "vector", "_relevance_score"]
    assert rows["id"].to_pylist()[0] == 4  # the first of both
    assert rows["_relevance_score"].to_pylist()[0] == pytest.approx(2 / 61)
    ids = rows["id"].to_pylist()
    assert len(ids) == len(set(ids)) == 3
    assert query(indexed, k=2, offset=1, with_row_id=True, **IDS, **both)["id"].to_pylist() == ids[1:]
    request: Any = {"k": 3, **both}
    explained = indexed.explain_table_query_plan(api.ExplainTableQueryPlanRequest(id=["t"], query=request))
    assert "vector search:" in explained
    assert "full-text search:" in explained


REFUSED: dict[str, dict[str, Any]] = {
    "both kinds of vectors": {"vector": {"single_vector": [0.0, 1.0], "multi_vector": [[0.0, 1.0]]}},
    "a vector of another dimension": {"vector": {"single_vector": [0.0]}},
    "an unknown distance": {"vector": {"single_vector": [0.0, 1.0]}, "distance_type": "manhattan"},
    "a bound without a vector": {"upper_bound": 1.0},
    "probes without a vector": {"nprobes": 3},
    "a vector column without a vector": {"vector_column": "vector"},
    "both kinds of full-text queries": {
        "full_text_query": {
            "string_query": {"query": "alpha"},
            "structured_query": {"query": {"match": {"terms": "alpha", "column": "line"}}},
        }
    },
    "an empty structured query": {"full_text_query": {"structured_query": {"query": {}}}},
    "an unknown operator": {
        "full_text_query": {
            "structured_query": {"query": {"match": {"terms": "alpha", "column": "line", "operator": "xor"}}}
        }
    },
    "a malformed condition": {"filter": "id = = 1"},
    "an unknown function": {"columns": {"column_aliases": {"x": "frobnicate(id)"}}},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_query_that_cannot_be_honoured_is_refused(indexed: lancekeep.DirectoryNamespace, kind: str) -> None:
    with pytest.raises(api_errors.InvalidInputError):
        query(indexed, **REFUSED[kind])


def test_outage_during_a_query_is_no_fault_of_the_caller(tmp_path: Path) -> None:
    namespace = connect(tmp_path)
    create(namespace, people(1))
    for path in (tmp_path / "lake").rglob("*.lance"):
        if path.is_file():
            path.unlink()
    with pytest.raises(api_errors.InternalError):
        query(namespace)
    reader = namespace.query_stream(api.QueryTableRequest(id=["t"], vector=NO_VECTOR, k=0))
    with pytest.raises(api_errors.InternalError):
        reader.read_all()


def test_update_refuses_what_it_cannot_honour(tmp_path: Path) -> None:
    namespace = connect(tmp_path)
    create(namespace, people(1))
    update: dict[str, Any] = {"id": ["t"], "updates": [["writer", "'x'"]]}
    with pytest.raises(api_errors.UnsupportedOperationError):
        namespace.update_table(api.UpdateTableRequest(**update, properties={"a": "b"}))
    for updates in ([], [["writer", "'x'"], ["writer", "'y'"]]):
        with pytest.raises(api_errors.InvalidInputError):
            namespace.update_table(api.UpdateTableRequest(id=["t"], updates=updates))
    with pytest.raises(api_errors.InvalidInputError):
        upsert(namespace, people(2), timeout="soon")
    with pytest.raises(api_errors.InvalidInputError):
        upsert(namespace, people(2), on=None)
    assert len(namespace.catalog.versions.history("t")) == 1


def test_models_differ_from_the_document_only_where_listed() -> None:
    """The document is version 0.11.1; the installed models win."""
    assert set(api.MergeInsertIntoTableRequest.model_fields) >= {"on", "timeout", "use_index"}
    assert api.MergeInsertIntoTableRequest(on=["id"]).on == ["id"]  # the document has one column
    with pytest.raises(ValueError, match="on"):
        api.MergeInsertIntoTableRequest.model_validate({"on": "id"})
    added = {"minimum_nprobes", "maximum_nprobes"}  # the document has nprobes only
    assert added < set(api.QueryTableRequest.model_fields)
    assert added < set(api.AnalyzeTableQueryPlanRequest.model_fields)
