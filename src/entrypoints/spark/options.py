"""Parse and check the options of ``format("lancekeep")``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import attrs
from pyspark.sql.types import StructField, StructType

from lancekeep.application.catalog import Catalog
from lancekeep.config import ConnectionConfig
from lancekeep.config_settings import SETTINGS, is_setting
from lancekeep.domain.errors import InvalidInput

TABLE = ("table", "path")  # Spark calls the argument of load() and save() a path
MERGE_SCHEMA = "mergeschema"
ROW_IDS = "stable_row_ids"
BATCH_READ = ("columns", "version", "tag", "branch", "limit", "batch_size", "max_partitions")
STREAM_READ = (
    "columns",
    "batch_size",
    "max_partitions",
    "starting_version",
    "max_versions_per_trigger",
    "max_rows_per_trigger",
    "skip_change_commits",
    "read_changes",
)
BATCH_WRITE = ("vector.", MERGE_SCHEMA, ROW_IDS)
_SPARK_STREAM_WRITE = ("checkpointlocation", "queryname")
"""Options that Spark passes on to every sink: its own, and the argument of ``queryName``."""
STREAM_WRITE = ("vector.", ROW_IDS, "ignore_removed_versions", *_SPARK_STREAM_WRITE)

_KEPT = ("columns", "version", "tag", "branch", "batch_size", "max_partitions")

LOCATION = "lancekeep.location"
"""The metadata key, on the first column of a session catalog's table, of the options that created the table."""

_DECLARED = re.compile(r"option\..*|provider|owner|comment|collation|external|is_managed_location|table_type")
"""Names that Spark adds to the options of a CREATE TABLE."""

_SECRET = re.compile("secret|password|token|key|credential")


class Connect(Protocol):
    """``lancekeep.connect``, which tasks import only when they open a catalog."""

    def __call__(self, *, properties: Mapping[str, str]) -> Catalog: ...


@attrs.frozen
class Options:
    """Checked options, with names in lower case, as Spark compares them.

    Values may be secrets, so the repr hides them.
    """

    values: Mapping[str, str] = attrs.field(repr=False)

    @staticmethod
    def of(given: Mapping[str, str], *known: str) -> Options:
        """Check options.

        Args:
            given: The options.
            known: The names that are allowed, besides the names for the connection and the table.

        Raises:
            InvalidInput: An option is unknown.
        """
        values = {name.lower(): value for name, value in given.items()}
        allowed = (*SETTINGS, *TABLE, *known)
        others = [name for name in values if not is_setting(name)]
        unknown = [name for name in others if not any(_names(option, name) for option in allowed)]
        if unknown:
            named = sorted({f"{option}*" if option.endswith(".") else option for option in allowed} - {"path"})
            raise InvalidInput(f"unknown option {unknown[0]!r} of lancekeep; known here are: {', '.join(named)}")
        return Options(values)

    def opener(self, connect: Connect) -> Callable[[], Catalog]:
        """Return a function that opens the catalog; it pickles with the credentials.

        The method reads environment and files, which may differ on executors.
        """
        config = ConnectionConfig.resolve({name: self.values[name] for name in self.values if is_setting(name)})
        config.require_root()
        return partial(connect, properties=config.as_properties())

    @property
    def table(self) -> str:
        """Return the identifier of the table.

        Raises:
            InvalidInput: Not exactly one table is named, or the name is a location.
        """
        named = {self.values[name] for name in TABLE if name in self.values}
        if len(named) != 1:
            raise InvalidInput("name one table: load('namespace.table'), save('namespace.table') or the option table")
        identifier = named.pop()
        if "/" in identifier:
            raise InvalidInput(f"{identifier!r} is a location; name the table ('namespace.table'), and give the root")
        return identifier

    @property
    def columns(self) -> list[str] | None:
        """Return the columns to read; None for all."""
        names = self.values.get("columns")
        return None if names is None else [name.strip() for name in names.split(",")]

    def number(self, name: str) -> int | None:
        """Return a positive whole number; None if it is not given.

        Raises:
            InvalidInput: The value is not a positive whole number.
        """
        value = self.values.get(name)
        if value is not None and not (value.isascii() and value.isdigit() and int(value)):
            raise InvalidInput(f"the option {name} is {value!r}; give a whole number from 1 on")
        return None if value is None else int(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, by default false.

        Raises:
            InvalidInput: The value is neither true nor false.
        """
        return self.choice(name) or False

    def choice(self, name: str) -> bool | None:
        """Return a boolean; None if it is not given.

        Raises:
            InvalidInput: The value is neither true nor false.
        """
        value = self.values.get(name)
        if value is not None and value.lower() not in ("true", "false"):
            raise InvalidInput(f"the option {name} is {value!r}; give true or false")
        return None if value is None else value.lower() == "true"

    def below(self, prefix: str) -> dict[str, str]:
        """Return the options whose names begin with a prefix, without the prefix."""
        return {name.removeprefix(prefix): value for name, value in self.values.items() if name.startswith(prefix)}

    # -- tables of Spark's session catalog, which keeps only their schema ---------------------------------

    @staticmethod
    def declared(given: Mapping[str, str]) -> Options | None:
        """Return the options of a CREATE TABLE; None if ``given`` belong to a read.

        Raises:
            InvalidInput: An option is unknown, or there is a LOCATION.
        """
        if "provider" not in given:
            return None
        if "location" in given:
            raise InvalidInput("a table of lancekeep has no LOCATION of its own: give OPTIONS (root '…', table '…')")
        return Options.of({name: given[name] for name in given if not _DECLARED.fullmatch(name)}, *_KEPT)

    def require_no_secret(self) -> None:
        """Check that no option is a secret, which the session catalog would show.

        Raises:
            InvalidInput: An option may be a secret.
        """
        secret = [name for name in self.values if "." in name and _SECRET.search(name)]
        if secret:
            raise InvalidInput(
                f"the session catalog would keep {secret[0]} in clear text: leave it out, and set it in the "
                "environment of Spark's processes"
            )

    def kept_in(self, schema: StructType, root_uri: str) -> StructType:
        """Return the schema with these options in its metadata."""
        kept = json.dumps({**self.values, "root": root_uri})
        first, *rest = schema
        metadata = {**first.metadata, LOCATION: kept}
        return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])

    @staticmethod
    def of_read(given: Mapping[str, str], schema: StructType, *known: str) -> Options:
        """Return the options of a read, completed by the options that the schema holds."""
        kept = schema[0].metadata.get(LOCATION) if schema.fields and "root" not in given else None
        return Options.of(given if kept is None else {**json.loads(kept), **given}, *known)


def _names(option: str, name: str) -> bool:
    return name.startswith(option) and name != option if option.endswith(".") else name == option
