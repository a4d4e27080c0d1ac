"""Behaviours of listings and their pages."""

from __future__ import annotations

from itertools import chain

from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import ROWS, Bench, Departure, claim
from lancekeep.testing.behaviours.registry import DECLARED, NAMESPACES, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

PAGES = (
    "PageToken: if there are more items than the page limit specified in the request, the implementation must return "
    "a page token in the response."
)
SOME = ["a", "a-b", "b", "ä", "z", "🦆", "Z"]


@behaviour("pages/tables", PAGES)
def _pages_of_tables(bench: Bench) -> None:
    for name in SOME:
        bench.one.ask("declare_table", id=bench.at(name))
    for limit in range(1, len(SOME) + 2):
        found = list(chain.from_iterable(bench.other.pages("list_tables", limit, id=bench.at())))
        claim(sorted(found) == sorted(SOME), "the pages together are not the list")


@behaviour("pages/namespaces", PAGES, NAMESPACES)
def _pages_of_namespaces(bench: Bench) -> None:
    for name in SOME:
        bench.one.ask("create_namespace", id=bench.at(name))
    for limit in range(1, len(SOME) + 2):
        found = list(chain.from_iterable(bench.other.pages("list_namespaces", limit, id=bench.at())))
        claim(sorted(found) == sorted(SOME), "the pages together are not the list")


@behaviour("pages/written", DECLARED)
def _pages_of_written_tables(bench: Bench) -> None:
    for name in ("a", "c", "e"):
        bench.one.ask("declare_table", id=bench.at(name))
    for name in ("b", "d", "f"):
        bench.create(name)
    for limit in (1, 2, 3):
        pages = bench.other.pages("list_tables", limit, id=bench.at(), include_declared=False)
        claim(sorted(chain.from_iterable(pages)) == ["b", "d", "f"], "the pages together are not the list")


@behaviour("pages/changes-between", PAGES)
def _pages_beside_changes(bench: Bench) -> None:
    names = [f"t{number}" for number in range(1, 6)]
    for name in names:
        bench.one.ask("declare_table", id=bench.at(name))
    found = []
    for number, page in enumerate(bench.other.pages("list_tables", 1, id=bench.at())):
        found += page
        if number < 3:
            bench.one.ask("declare_table", id=bench.at(f"t{number}0"))
    claim(set(names) <= set(found), "an object that existed all the time is missing")
    claim(len(found) == len(set(found)), "something is listed twice")


@behaviour("pages/limit-0", "PageLimit: An inclusive upper bound of the number of results that a caller will receive.")
def _limit_of_nothing(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    try:
        page = bench.other.attempt("list_tables", id=bench.at(), limit=0)
    except errors.InvalidInputError:
        return
    except Exception as error:
        raise Departure(f"`list_tables`: {type(error).__name__}") from error
    claim(not page.tables, "more than the limit")
    claim(page.page_token, "an empty page without a token, as if nothing were there")


@behaviour("pages/root-level", "ListTables: List all child table names of the parent namespace `id`.", NAMESPACES)
def _only_children(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.create("t")
    bench.one.ask("declare_table", id=bench.at("n", "below"))
    claim(bench.tables() == ["t"], "not exactly the child tables are listed")
    claim(bench.other.names("list_tables", id=bench.at("n")) == ["below"], "not exactly the child tables are listed")


@behaviour("all-tables/list", "ListAllTables: List all tables across all namespaces.", below_too=False)
def _all_tables(bench: Bench) -> None:
    for name in ("b", "a"):
        bench.create(name)
    claim(bench.other.names("list_all_tables") == ["a", "b"], "not every table")


@behaviour(
    "all-tables/nested",
    "ListTablesResponse.tables: This should recursively list all the tables in all child namespaces. Each string in "
    "the list is the full identifier in string form.",
    NAMESPACES,
    below_too=False,
)
def _all_tables_nested(bench: Bench) -> None:
    for names in (["n"], ["n", "m"]):
        bench.one.ask("create_namespace", id=names)
    for names in (["t"], ["n", "t"], ["n", "m", "t"]):
        bench.one.ask("create_table", id=names, data=ROWS)
    expected = sorted(("t", "n$t", "n$m$t"))
    claim(bench.other.names("list_all_tables") == expected, "not every table by its full identifier")
    for limit in (1, 2, 3, 4):
        found = list(chain.from_iterable(bench.other.pages("list_all_tables", limit)))
        claim(sorted(found) == expected, "the pages together are not the list")
