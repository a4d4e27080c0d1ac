"""Behaviours of two instances on one place, and of races between several."""

from __future__ import annotations

from typing import Any

from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import OTHERS, ROWS, Bench, claim
from lancekeep.testing.behaviours.registry import DATA, NAMESPACES, TAKEN, UNIQUE, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

CREATORS = 4
"""The number of creators that race for one name."""
LOSER = *TAKEN, errors.ConcurrentModificationError
"""The errors that a loser may receive."""

FRESH = "V2: Table discovery queries the manifest table. V1: discovers tables by scanning the directory."
ATOMIC = (
    "V2, Manifest Table Commits: it must atomically check if the table already exists such entry, as well as if any "
    "concurrent operation writes the same entry, and fail the operation accordingly if such conflict exists."
)


@behaviour("doors/tables", FRESH)
def _fresh_tables(bench: Bench) -> None:
    claim(bench.tables() == [], "`list_tables` of an empty place is not empty")
    bench.create("t")
    claim(bench.tables() == ["t"], "a table that was created is not listed")
    bench.other.ask("table_exists", id=bench.at("t"))
    bench.other.ask("drop_table", id=bench.at("t"))
    bench.one.refused("describe_table", errors.TableNotFoundError, id=bench.at("t"))
    bench.create("t", OTHERS)
    claim(bench.rows("t") == [4], "a table that was dropped and created is described as it was before")


@behaviour("doors/namespaces", FRESH, NAMESPACES)
def _fresh_namespaces(bench: Bench) -> None:
    claim(bench.namespaces() == [], "`list_namespaces` of an empty place is not empty")
    bench.one.ask("create_namespace", id=bench.at("n"))
    claim(bench.namespaces() == ["n"], "a namespace that was created is not listed")
    bench.other.ask("drop_namespace", id=bench.at("n"))
    bench.one.refused("describe_namespace", errors.NamespaceNotFoundError, id=bench.at("n"))


@behaviour("doors/reads-write-nothing", "TableExists: Check if table `id` exists.")
def _reads_write_nothing(bench: Bench) -> None:
    if bench.contents is None:
        return  # the place cannot be looked at
    for filled in (False, True):
        if filled:
            bench.create("t")
        before = bench.contents()
        for operation in ("list_tables", "describe_namespace", "namespace_exists"):
            bench.other.ask(operation, id=bench.at())
        bench.other.ask("list_all_tables")
        bench.other.refused("describe_table", errors.TableNotFoundError, id=bench.at("missing"))
        if filled:
            bench.other.ask("table_exists", id=bench.at("t"))
            bench.other.ask("describe_table", id=bench.at("t"), check_declared=True, load_detailed_metadata=True)
        claim(bench.contents() == before, "looking has changed what is stored")


@behaviour("races/declare", ATOMIC)
def _race_to_declare(bench: Bench) -> None:
    for number in range(3):
        _one_winner(bench, *[("declare_table", {"id": bench.at(f"t{number}")})] * CREATORS)
    claim(bench.tables() == ["t0", "t1", "t2"], "`list_tables` does not show each once")


@behaviour("races/create", ATOMIC)
def _race_to_create(bench: Bench) -> None:
    for number in range(3):
        _one_winner(bench, *[("create_table", {"id": bench.at(f"t{number}"), "data": ROWS})] * CREATORS)
        claim(bench.rows(f"t{number}") == [1, 2, 3], "the rows of more than one creator, or of none")


@behaviour("races/create-namespace", ATOMIC, NAMESPACES)
def _race_to_create_namespaces(bench: Bench) -> None:
    for number in range(3):
        _one_winner(bench, *[("create_namespace", {"id": bench.at(f"n{number}")})] * CREATORS)
    claim(bench.namespaces() == ["n0", "n1", "n2"], "each is not listed once")


@behaviour("races/different-names", ATOMIC)
def _race_for_different_names(bench: Bench) -> None:
    names = [f"t{number}" for number in range(CREATORS)]
    answers = bench.race(*(("declare_table", {"id": bench.at(name)}) for name in names))
    lost = [answer for answer in answers if isinstance(answer, Exception)]
    claim(not lost, "a creator of another name is refused")
    claim(bench.tables() == names, "not every table is listed")


@behaviour("races/drop-and-declare", UNIQUE, NAMESPACES)
def _race_of_drop_and_declare(bench: Bench) -> None:
    for number in range(3):
        name = f"n{number}"
        bench.one.ask("create_namespace", id=bench.at(name))
        bench.race(
            ("drop_namespace", {"id": bench.at(name)}),
            ("declare_table", {"id": bench.at(name, "t")}),
        )
        exists = name in bench.namespaces()
        if not exists:
            bench.one.ask("create_namespace", id=bench.at(name))
            found = bench.other.names("list_tables", id=bench.at(name))
            claim(found == [], "a table has outlived its namespace")


def _one_winner(bench: Bench, *calls: tuple[str, Any]) -> None:
    answers = bench.race(*calls)
    lost = [answer for answer in answers if isinstance(answer, Exception)]
    operation = calls[0][0]
    strange = sorted({type(error).__name__ for error in lost if not isinstance(error, LOSER)})
    claim(not strange, f"losers of `{operation}` receive {', '.join(strange)}")
    claim(len(answers) - len(lost) == 1, f"not exactly one `{operation}` wins")


@behaviour("races/merge", "MergeInsertIntoTable: This operation updates existing rows based on a matching column and "
           "inserts new rows that don't match.", DATA)  # fmt: skip
def _merges(bench: Bench) -> None:
    bench.create("t")
    clauses = {"on": ["a"], "when_matched_update_all": True, "when_not_matched_insert_all": True}
    call = ("merge_insert_into_table", {"id": bench.at("t"), "data": OTHERS, **clauses})
    answers = bench.race(*[call] * CREATORS)
    refused = [answer for answer in answers if isinstance(answer, Exception)]
    claim(
        all(isinstance(error, errors.ConcurrentModificationError) for error in refused),
        "a merge that loses is refused with another error",
    )
    claim(bench.rows("t") == [1, 2, 3, 4], "a key that several merges insert is in the table twice")
