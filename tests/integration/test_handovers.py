"""Other writers of a process commit between two groups of appends, and neither loses a version."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from deployments import deployment

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows import handover
from lancekeep.application.rows.versions import Versions
from lancekeep.domain.commit import Conflict
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import Table

STORES = ("conditional-put", "sqlite", "redis", "conditional-put-s3")
TABLE = ObjectId.of("t")

Change = Callable[[lancekeep.Catalog], Any]


def delete(catalog: lancekeep.Catalog) -> Any:
    return catalog.data.delete("t", "n = 0")


def compact(catalog: lancekeep.Catalog) -> Any:
    return catalog.upkeep.compact("t")


CHANGES: Mapping[str, Change] = {"delete": delete, "compact": compact}
LEFT = {"delete": Counter(range(1, 6)), "compact": Counter(range(6))}


@attrs.define
class Meeting:
    """A group of appends that reaches its commit, and a change that begins then.

    The next group waits by then.
    """

    catalog: lancekeep.Catalog
    outcomes: list[tuple[str, bool]] = attrs.field(factory=list)
    fails: bool = False
    turns: list[handover.Handover] = attrs.field(factory=list)
    _at_commit: threading.Event = attrs.field(factory=threading.Event)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def line(self) -> Any:
        return directory_of(self.catalog).versions.lines.find(TABLE)

    def hold(self) -> None:
        """Hold the first group up until the change asks for its turn, and the next append waits."""
        self._at_commit.set()
        for _ in range(10_000):
            line = self.line()
            self.turns = [each for each in line.asking if each.is_ready]
            if line.waiting and self.turns:
                return
            threading.Event().wait(0.001)

    def committing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def commit_built(versions: Versions, table: Table, *built: Any, **more: Any) -> Any:
            is_change = threading.current_thread().name == "change"
            if not is_change and not self._at_commit.is_set():
                self.hold()
            if is_change and self.fails:
                raise StoreUnavailable("the store is away")
            outcome, found = real(versions, table, *built, **more)
            with self._lock:
                self.outcomes.append(("change" if is_change else "append", isinstance(outcome, Conflict)))
            return outcome, found

        return commit_built

    def run(self, change: Change) -> list[Any]:
        """Return the answers of two appends and the change."""
        answers: dict[str, Any] = {}

        def act(name: str, what: Callable[[], Any]) -> None:
            try:
                answers[name] = what()
            except lancekeep.LancekeepError as error:
                answers[name] = error

        def append(number: int) -> Callable[[], Any]:
            return lambda: self.catalog.write("t", pa.table({"n": [number]}), "append").version

        acts = {"first": append(4), "change": lambda: change(self.catalog), "second": append(5)}
        threads = [threading.Thread(target=act, args=each, name=each[0]) for each in acts.items()]
        for thread in threads:
            thread.start()
            self._at_commit.wait()
        for thread in threads:
            thread.join()
        return [answers[name] for name in acts]


@pytest.fixture(params=STORES)
def meeting(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> Meeting:
    at = deployment(request.param, tmp_path, redis_url, moto_endpoint)
    catalog = lancekeep.connect(at.root, commit_store=at.commit_store or None, storage_options=at.storage_options)
    catalog.write("t", pa.table({"n": [0, 1]}))
    for number in (2, 3):
        catalog.write("t", pa.table({"n": [number]}), "append")
    met = Meeting(catalog)
    monkeypatch.setattr(Versions, "commit_built", met.committing(Versions.commit_built))
    monkeypatch.setattr(handover, "HANDED_OVER_WITHIN", 60.0)
    monkeypatch.setattr(handover, "LONGEST_TURN", 60.0)
    return met


def rows_of(catalog: lancekeep.Catalog) -> Counter[int]:
    """Return the rows that plain pylance reads."""
    table = catalog.open("t")
    options = directory_of(catalog).places.storage_options
    return Counter(lance.dataset(table.uri, storage_options=dict(options) or None).to_table()["n"].to_pylist())


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_commits_between_two_groups_and_no_version_is_lost(meeting: Meeting, name: str) -> None:
    first, _, second = meeting.run(CHANGES[name])
    assert meeting.outcomes == [("append", False), ("change", False), ("append", False)]
    assert (first, second) == (4, 6)
    assert rows_of(meeting.catalog) == LEFT[name]


def test_a_change_that_fails_in_its_turn_lets_the_appends_continue(meeting: Meeting) -> None:
    meeting.fails = True
    first, change, second = meeting.run(delete)
    assert isinstance(change, StoreUnavailable)
    assert [turn._ended.is_set() for turn in meeting.turns] == [True]
    assert (first, second) == (4, 5)
    assert rows_of(meeting.catalog) == Counter(range(6))
