"""Behaviours of tables that are dropped, deregistered, registered and renamed."""

from __future__ import annotations

from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import OTHERS, Bench, claim, directory
from lancekeep.testing.behaviours.registry import LOCATIONS, NAMESPACES, REGISTER, RENAME, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add


@behaviour("tables/drop", "DropTable: Drop table `id` and delete its data.")
def _drop(bench: Bench) -> None:
    location = bench.create("t").location
    bench.other.ask("drop_table", id=bench.at("t"))
    claim(bench.tables() == [], "`list_tables` shows it still")
    bench.one.refused("table_exists", errors.TableNotFoundError, id=bench.at("t"))
    claim(bench.is_gone(location), "the rows are there still")


@behaviour("tables/drop-declared", "DropTable: Drop table `id` and delete its data.")
def _drop_declared(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    bench.other.ask("drop_table", id=bench.at("t"))
    bench.one.refused("table_exists", errors.TableNotFoundError, id=bench.at("t"))
    bench.one.ask("declare_table", id=bench.at("t"))


@behaviour(
    "tables/drop-and-create",
    "V2: High entropy prevents issues when a table is created, deleted, and recreated with the same name in quick "
    "succession.",
)
def _drop_and_create(bench: Bench) -> None:
    for _ in range(3):
        bench.create("t")
        bench.other.ask("drop_table", id=bench.at("t"))
        claim(bench.create("t", OTHERS).version == 1, "the new table has the old one's versions")
        claim(bench.rows("t") == [4], "other rows at the location")
        bench.other.ask("drop_table", id=bench.at("t"))


DEREGISTER = "DeregisterTableRequest: The table content remains available in the storage."


@behaviour("register/deregister", DEREGISTER, REGISTER)
def _deregister(bench: Bench) -> None:
    location = bench.deregistered("t")
    for operation in ("table_exists", "describe_table", "drop_table"):
        bench.other.refused(operation, errors.TableNotFoundError, id=bench.at("t"))
    claim(bench.tables() == [], "`list_tables` shows it still")
    claim(bench.rows_at(location) == [1, 2, 3], "the rows are gone")


@behaviour("register/name-is-free", DEREGISTER, REGISTER, LOCATIONS)
def _name_is_free(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.create("t", OTHERS)
    claim(bench.rows("t") == [4], "other rows at the location")
    claim(bench.tables() == ["t"], "`list_tables` does not show it once")
    is_reused = bench.one.ask("describe_table", id=bench.at("t")).location == location
    claim(is_reused or bench.rows_at(location) == [1, 2, 3], "the rows of the deregistered table are gone")


REGISTER_TABLE = "RegisterTable: Register an existing table at a given storage location as `id`."


@behaviour("register/again", REGISTER_TABLE, REGISTER)
def _register_again(bench: Bench) -> None:
    location = bench.deregistered("t")
    registered = bench.one.ask("register_table", id=bench.at("t"), location=directory(location))
    claim(directory(registered.location) == directory(location), "it is registered elsewhere")
    claim(bench.rows("t") == [1, 2, 3], "other rows at the location")
    claim(bench.tables() == ["t"], "`list_tables` does not show it")


@behaviour("register/answered-location", REGISTER_TABLE, REGISTER)
def _register_answered_location(bench: Bench) -> None:
    bench.one.ask("register_table", id=bench.at("t"), location=bench.deregistered("t"))
    claim(bench.rows("t") == [1, 2, 3], "other rows at the location")


@behaviour("register/as-another", REGISTER_TABLE, REGISTER, LOCATIONS)
def _register_as_another(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.one.ask("register_table", id=bench.at("u"), location=directory(location))
    claim(bench.rows("u") == [1, 2, 3], "other rows at the location")
    claim(bench.tables() == ["u"], "`list_tables` does not show exactly the new name")


@behaviour("register/taken", "RegisterTableRequest.mode: Create (default): the operation fails with 409.", REGISTER,
           LOCATIONS)  # fmt: skip
def _register_taken(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.create("u", OTHERS)
    taken = errors.TableAlreadyExistsError
    bench.other.refused("register_table", taken, id=bench.at("u"), location=directory(location))
    claim(bench.rows("u") == [4], "it is registered all the same")


@behaviour("register/overwrite", "RegisterTableRequest.mode: Overwrite: the existing table registration is replaced "
           "with the new registration.", REGISTER, LOCATIONS)  # fmt: skip
def _register_overwrite(bench: Bench) -> None:
    location = bench.deregistered("t")
    bench.create("u", OTHERS)
    bench.other.ask("register_table", id=bench.at("u"), location=directory(location), mode="Overwrite")
    claim(bench.rows("u") == [1, 2, 3], "the existing registration stays")


@behaviour("register/nothing", REGISTER_TABLE, REGISTER, LOCATIONS)
def _register_nothing(bench: Bench) -> None:
    refusals = errors.TableNotFoundError, errors.InvalidInputError
    bench.one.refused("register_table", *refusals, id=bench.at("t"), location="nothing-is-here")


@behaviour("register/of-another", "Concepts: The identifier of an object uniquely identifies the object.", REGISTER,
           LOCATIONS)  # fmt: skip
def _register_of_another(bench: Bench) -> None:
    location = directory(bench.create("t").location)
    refusals = errors.InvalidInputError, errors.TableAlreadyExistsError, errors.InvalidTableStateError
    bench.other.refused("register_table", *refusals, id=bench.at("u"), location=location)


@behaviour("register/outside", "V2, location: Relative path to the table directory within the root.", REGISTER,
           LOCATIONS)  # fmt: skip
def _register_outside(bench: Bench) -> None:
    for location in ("../outside", "a/../../outside", "/outside"):
        bench.one.refused("register_table", errors.InvalidInputError, id=bench.at("t"), location=location)


@behaviour("rename/name", "RenameTable: Rename table `id` to a new name.", RENAME)
def _rename(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("rename_table", id=bench.at("t"), new_table_name="u")
    claim(bench.tables() == ["u"], "`list_tables` does not show exactly the new name")
    claim(bench.rows("u") == [1, 2, 3], "other rows at the location")
    bench.other.refused("table_exists", errors.TableNotFoundError, id=bench.at("t"))
    bench.create("t", OTHERS)
    claim(bench.rows("u") == [1, 2, 3], "the old name's new table has taken the rows")


@behaviour("rename/namespace", "RenameTableRequest.new_namespace_id: New namespace identifier to move the table to "
           "(optional, if not specified the table stays in the same namespace).", RENAME, NAMESPACES)  # fmt: skip
def _rename_elsewhere(bench: Bench) -> None:
    bench.one.ask("create_namespace", id=bench.at("n"))
    bench.create("t")
    bench.one.ask("rename_table", id=bench.at("t"), new_table_name="u", new_namespace_id=bench.at("n"))
    claim(bench.tables() == [], "`list_tables` shows it still")
    claim(bench.rows("n", "u") == [1, 2, 3], "other rows at the location")


@behaviour("rename/refused", "RenameTable: 404 and 409.", RENAME, NAMESPACES)
def _rename_refused(bench: Bench) -> None:
    bench.create("t")
    bench.create("u", OTHERS)
    rename = "rename_table"
    bench.one.refused(rename, errors.TableNotFoundError, id=bench.at("missing"), new_table_name="x")
    bench.one.refused(rename, errors.TableAlreadyExistsError, id=bench.at("t"), new_table_name="u")
    nowhere = bench.at("missing")
    bench.one.refused(
        rename, errors.NamespaceNotFoundError, id=bench.at("t"), new_table_name="x", new_namespace_id=nowhere
    )
    claim((bench.rows("t"), bench.rows("u")) == ([1, 2, 3], [4]), "the tables are not what they were")
