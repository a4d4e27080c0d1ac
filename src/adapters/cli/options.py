"""What commands have in common: the stores they work on, and how they talk.

A command takes ``@stores``, which gives it a `Stores`, and what it needs of ``@as_json`` and ``@assume_yes``; and the
catalog's public functions by ``@click.pass_obj``, a `Doors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import attrs
import click

from lancekeep.application.catalog import Catalog
from lancekeep.application.certification import Certificate
from lancekeep.domain.errors import NotFound

P = ParamSpec("P")
T = TypeVar("T")


class Doors(Protocol):
    """The public functions of `lancekeep` that commands call: an adapter must not import what is made of adapters."""

    @property
    def connect(self) -> Callable[..., Catalog]: ...

    @property
    def certify(self) -> Callable[..., Certificate]: ...

    @property
    def jobs(self) -> Any: ...  # the module `lancekeep.jobs`; asking for it needs PySpark


@attrs.frozen
class Stores:
    """Where the catalog lies and what commits its versions, as ``connect(**stores.given)`` takes it."""

    root: str
    commit_store: str | None
    storage_options: dict[str, str] = attrs.field(repr=False)
    commit_store_options: dict[str, str] = attrs.field(repr=False)

    @property
    def given(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @contextmanager
    def catalog(self, doors: Doors, *, new: bool = False, **how: str) -> Iterator[Catalog]:
        """The catalog that lies there, or with ``new`` is to be made there.

        Raises `NotFound` where nothing lies: a mistyped root must not pass for a catalog in order.
        """
        with doors.connect(**self.given, **how) as catalog:
            if not new and catalog.is_bare():
                raise NotFound(f"nothing lies at {catalog.root_uri}: no catalog, and no table. Is it the right root?")
            yield catalog


def stores(command: Callable[Concatenate[Stores, P], T]) -> Callable[..., T]:
    """The argument ROOT and the options that go with it, as the first argument of the command."""

    @click.argument("root")
    @click.option("--commit-store", metavar="URL", help="The commit store; left out, the storage's own condition.")
    @pairs("--storage-option", "An option of the storage; may be repeated.")
    @pairs("--commit-store-option", "An option of the commit store, a password for instance; may be repeated.")
    @wraps(command)
    def with_stores(
        *args: Any,
        root: str,
        commit_store: str | None,
        storage_option: dict[str, str],
        commit_store_option: dict[str, str],
        **kwargs: Any,
    ) -> T:
        return command(Stores(root, commit_store, storage_option, commit_store_option), *args, **kwargs)

    return with_stores


def as_json(command: Callable[P, T]) -> Callable[P, T]:
    """``--json``: the result as one JSON document on stdout, and nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")(command)


def assume_yes(command: Callable[P, T]) -> Callable[P, T]:
    """``--yes``: do what would otherwise only be shown."""
    return click.option("--yes", "assume_yes", is_flag=True, help="Do it; without, it is only shown.")(command)


def pairs(name: str, explanation: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """An option of the form NAME=VALUE that may be repeated, as a dict."""
    return click.option(name, multiple=True, metavar="NAME=VALUE", callback=_parsed, help=explanation)


def _parsed(_: click.Context, option: click.Parameter, values: Iterable[str]) -> dict[str, str]:
    """Raises `click.BadParameter`, which quotes names only: a value may be a secret."""
    pairs: dict[str, str] = {}
    for value in values:
        name, separator, given = value.partition("=")
        if not name or not separator:
            raise click.BadParameter("expected NAME=VALUE, found no name followed by '='", param=option)
        if name in pairs:
            raise click.BadParameter(f"{name} is given twice; say it once", param=option)
        pairs[name] = given
    return pairs
