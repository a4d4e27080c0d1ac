"""Upserts that are committed without the engine, between random changes of tables of random schemas."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.adapters.lance.rows import LanceRows
from lancekeep.application.rows import direct_upserts, known_keys
from lancekeep.ports.rows import MergeCounts, MergeRule

UPSERT = MergeRule(["id"], update=True, insert=True)
WORDS = ("red", "green", "blue", "dark")
COLUMNS: dict[str, pa.DataType] = {
    "word": pa.string(),
    "vector": pa.list_(pa.float32(), 2),
    "place": pa.struct([("x", pa.int32()), ("names", pa.list_(pa.string()))]),
    "price": pa.float64(),
    "at": pa.timestamp("us", "Europe/Berlin"),
}
INDEXES = (("id", "BTREE"), ("by", "BTREE"), ("word", "BITMAP"), ("by", "ZONEMAP"), ("id", "BLOOMFILTER"))
CHANGES = "append compact compact delete index index merge optimize overwrite recreate rename restore columns update"


class Table:
    """A table, and the rows that it must have by their keys; two clients of its catalog."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        store = chance.choice([None, "conditional-put://", f"sqlite://{directory}/commits.db"])
        self._clients = [
            lancekeep.connect(str(directory / "lake"), commit_store=store, storage_options={"fsync": "false"})
            for _ in range(2)
        ]
        self._chance = chance
        kind = chance.choice([pa.int64(), pa.int8(), pa.uint64(), pa.string(), pa.large_string()])
        texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        first = 2**63 if kind == pa.uint64() else 0
        self._keys: list[Any] = [f"same start {n}'" if texts else first + n for n in range(chance.choice([20, 100]))]
        names = ["id", "by", "word", *chance.sample(sorted(COLUMNS.keys() - {"word"}), 2)]
        chance.shuffle(names)
        self._kinds = {"id": kind, "by": pa.int64(), **COLUMNS}
        self._names = names
        self._rows: dict[Any, dict[str, Any]] = {}
        self.turn = 0
        self._client.write(
            "t", self._any(), properties={"constraint.later": "by >= 0"} if chance.random() < 0.3 else None
        )

    @property
    def _client(self) -> lancekeep.Catalog:
        return self._chance.choice(self._clients)

    @property
    def _plain(self) -> lance.LanceDataset:
        return lance.dataset(self._clients[0].describe_table("t").uri)

    def _any(self, most: int = 1000) -> pa.Table:
        """Return new rows of some keys, and expect them."""
        count = self._chance.randint(1, min(len(self._keys), most))
        return self._new(self._chance.sample(self._keys, count))

    def _new(self, keys: Sequence[Any]) -> pa.Table:
        columns = {name: [self._value(name, key) for key in keys] for name in self._names}
        rows = pa.table({name: pa.array(values, self._kinds[name]) for name, values in columns.items()})
        self._rows.update((row["id"], row) for row in rows.to_pylist())
        return rows

    def _value(self, name: str, key: Any) -> Any:
        if name in ("id", "by"):
            return key if name == "id" else self.turn
        if name not in ("vector", "more") and self._chance.random() < 0.1:
            return None
        values = {
            "word": self._chance.choice(WORDS),
            "vector": [self._chance.random(), 1.0],
            "place": {"x": self.turn, "names": self._chance.choice([None, [], ["a", None]])},
            "price": self._chance.choice([float("nan"), -0.0, 1.5]),
            "at": 10**15 + self.turn,
            "more": self.turn,
        }
        return values[name]

    def upsert(self) -> None:
        self.turn += 1
        before = set(self._rows)
        rows = self._any(self._chance.choice([3, 12, 1000]))
        keys = rows["id"].to_pylist()
        known = len(before & set(keys))
        _, counts = self._client.data.merge("t", rows.to_reader(), UPSERT)
        assert counts == MergeCounts(len(keys) - known, known, 0)

    def change(self, what: str) -> None:
        """Change the table in another way."""
        self.turn += 1
        by, client = self._chance.randint(0, self.turn), self._client
        match what:
            case "append":
                missing = [key for key in self._keys if key not in self._rows]
                if missing:
                    client.write("t", self._new(missing[:5]), "append")
            case "compact":
                client.upkeep.compact("t")
            case "delete":
                client.data.delete("t", f"by = {by}")
                self._rows = {key: row for key, row in self._rows.items() if row["by"] != by}
            case "index":
                column, kind = self._chance.choice(INDEXES)
                client.open("t").create_scalar_index(column, kind, replace=True)
            case "merge":
                merge = client.open("t").merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(self._any(6))
            case "optimize":
                client.open("t").optimize.optimize_indices()
            case "overwrite" | "recreate":
                if what == "recreate":
                    client.drop_table("t")
                self._rows = {}
                self._client.write("t", self._any(), "overwrite" if what == "overwrite" else "create")
            case "rename":
                client.rename_table("t", "other")
                self._client.rename_table("other", "t")
            case "restore":
                version = self._chance.randint(1, self._plain.version)
                if self._plain.checkout_version(version).schema.equals(self._plain.schema):
                    client.versions.restore("t", version)
                    self._rows = {row["id"]: row for row in self._plain.to_table().to_pylist()}
            case "columns":
                if "more" in self._names:
                    client.open("t").drop_columns(["more"])
                    self._names = [name for name in self._names if name != "more"]
                else:
                    client.open("t").add_columns({"more": "by + 1"})
                    self._names, self._kinds = [*self._names, "more"], {**self._kinds, "more": pa.int64()}
                self._rows = {
                    key: {name: row["by"] + 1 if name == "more" else row[name] for name in self._names}
                    for key, row in self._rows.items()
                }
            case _:
                client.data.update("t", {"by": str(self.turn)}, f"by <= {by}")
                self._rows = {
                    key: row | {"by": self.turn if row["by"] <= by else row["by"]} for key, row in self._rows.items()
                }

    def check(self) -> None:
        """Compare all rows with the expected ones, and the answers of indexes with those of scans."""
        dataset = self._plain
        dataset.validate()
        rows = dataset.to_table().to_pylist()
        assert sorted(map(repr, rows)) == sorted(map(repr, self._rows.values()))  # as text, in which NaN equals NaN
        word, by = self._chance.choice(WORDS), self._chance.randint(0, self.turn)
        for condition in (f"word = '{word}'", "word IS NULL", f"by = {by}", f"by > {by}", self._one_key()):
            found, scanned = (
                sorted(map(repr, dataset.to_table(filter=condition, use_scalar_index=used)["id"].to_pylist()))
                for used in (True, False)
            )
            assert found == scanned, condition

    def _one_key(self) -> str:
        key = self._chance.choice(self._keys)
        if isinstance(key, str):
            return f"id = '{key.replace(chr(39), chr(39) * 2)}'"
        return f"id = CAST({key} AS {'BIGINT UNSIGNED' if key >= 2**63 else 'BIGINT'})"


@pytest.mark.parametrize("seed", range(8))
def test_upserts_between_random_changes_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    merges: list[int] = []
    merge = LanceRows.merge

    def noting(self: LanceRows, dataset: Any, source: Any, rule: MergeRule) -> Any:
        merges.append(1)
        return merge(self, dataset, source, rule)

    chance = random.Random(seed)
    monkeypatch.setattr(LanceRows, "merge", noting)
    monkeypatch.setattr(direct_upserts, "_OFTEN", 0)
    monkeypatch.setattr(direct_upserts, "_UNREADABLE", 0.0)
    monkeypatch.setattr(known_keys, "_MOST_MOVED", chance.choice([5, 50_000]))
    table, upserts = Table(tmp_path, chance), 0
    for _ in range(14):
        for _ in range(chance.randint(1, 2)):
            table.upsert()
            upserts += 1
        table.change(chance.choice(CHANGES.split()))
        if chance.random() < 0.3:
            table.check()
    table.check()
    assert len(merges) < upserts / 2, "the engine has merged most upserts"
