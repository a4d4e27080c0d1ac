"""Implement CREATE INDEX and DROP INDEX of Spark's grammar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import IndexAlreadyExists, IndexNotFound, InvalidInput, LancekeepError, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.internals.classes import EXPRESSIONS, INDEX
from lancekeep.entrypoints.spark.jobs.index import index
from lancekeep.entrypoints.spark.sql.branches import WAP_BRANCH, Branch
from lancekeep.entrypoints.spark.sql.jvm import Proxy

_TYPE = "type"
"""The key under which Spark gives what USING names."""
_DEFAULT_TYPE = "BTREE"
_OPTIONS: Mapping[str, Callable[[str], Any]] = {"metric": str, "partitions": int, "sub_vectors": int}


class Indexed(Proxy):
    """The indexes of a table."""

    _declared: ClassVar[Mapping[str, tuple[type[LancekeepError], ...]]] = {
        "createIndex": (IndexAlreadyExists,),
        "dropIndex": (IndexNotFound,),
    }

    _catalog: Catalog
    _table: ObjectId
    _branch: Branch | None

    def createIndex(self, name: str, columns: Iterable[Any], of_columns: Any, properties: Any) -> None:
        self._require_main()
        paths = [list(column.fieldNames()) for column in columns]
        if len(paths) != 1 or len(paths[0]) != 1:
            raise Unsupported(f"the index {name} is of {_shown(paths)}; an index is of one column, and of no field")
        if any(len(options) for options in dict(of_columns).values()):
            raise InvalidInput(f"the index {name}: put OPTIONS after the column in parentheses, not inside them")
        given = dict(properties)
        kind = given.pop(_TYPE, "") or _DEFAULT_TYPE
        options = _options(name, given)
        if self.indexExists(name):
            raise IndexAlreadyExists(f"{self._table} has an index {name!r}; drop it first, or choose another name")
        tables = self._indexed()
        if not tables:
            raise InvalidInput(f"{self._table} has no partition to index; insert rows first. Nothing was changed.")
        spark = SparkSession.getActiveSession() or self._jvm.spark
        for table in tables:
            index(spark, self._catalog, table, paths[0][0], kind, name=name, **options)

    def dropIndex(self, name: str) -> None:
        self._require_main()
        tables = self._having(name) or self._indexed()[:1]
        if not tables:
            raise IndexNotFound(f"{self._table} has no index {name!r}, because it has no partition")
        for table in tables:
            self._catalog.structure.drop_index(table, name)

    def indexExists(self, name: str) -> bool:
        return bool(self._having(name))

    def _indexed(self) -> list[ObjectId]:
        """Return the tables that have the indexes."""
        return [self._table]

    def _having(self, name: str) -> list[ObjectId]:
        structure = self._catalog.structure
        return [table for table in self._indexed() if any(each.name == name for each in structure.indexes(table))]

    def listIndexes(self) -> Any:
        kind, reference = self._jvm.java(INDEX + "TableIndex"), EXPRESSIONS + "NamedReference"
        properties = self._jvm.java("java.util.Properties")
        expressions = self._jvm.java(EXPRESSIONS + "Expressions")
        found = []
        stored = [each for table in self._indexed() for each in self._catalog.structure.indexes(table)]
        for each in {each.name: each for each in stored}.values():
            columns = self._jvm.array(reference, [expressions.column(name) for name in each.columns])
            found.append(kind(each.name, each.kind, columns, self._jvm.map({}), properties()))
        return self._jvm.array(INDEX + "TableIndex", found)

    def _require_main(self) -> None:
        if self._branch is not None:
            raise Unsupported(
                f"{self._table}: the statement is about the branch {self._branch.name!r}, and indexes are made and "
                f"dropped in the main history. Name the table itself, or unset {WAP_BRANCH}"
            )


def _options(index_name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of an index.

    Raises:
        InvalidInput: An option is unknown, or its value is no number.
    """
    unknown = sorted(given.keys() - _OPTIONS.keys())
    if unknown:
        raise InvalidInput(f"the index {index_name}: there is no option {unknown[0]!r}; choose {', '.join(_OPTIONS)}")
    try:
        return {option: _OPTIONS[option](text) for option, text in given.items()}
    except ValueError as error:
        raise InvalidInput(f"the index {index_name}: an option is no number: {error}") from error


def _shown(paths: Iterable[list[str]]) -> str:
    return ", ".join(".".join(path) for path in paths)
