"""No module assigns an attribute of an object that belongs to another module.

What a part needs is an argument of its constructor, and what changes it is one of its methods. A part whose attributes
others assign works only if it was built in one certain way (ADR 118).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

MESSAGES = "fields of a protobuf message"
MODELS = "fields of a model of lance_namespace"
RECORDS = "fields of the records of one committer: its lines, and the appends that wait in them"
CAUSE = "the cause of an error that is not raised here"
OTHERS = "an object or a class of another package, which is configured in this way"
NAMES = "functions and classes of this module, by name"
EXCEPTIONS: dict[str, tuple[str, set[str]]] = {
    "__main__.py": (OTHERS, {"stderr", "stdin", "stdout"}),
    "adapters/committers/tls.py": (OTHERS, {"check_hostname", "minimum_version", "verify_mode"}),
    "adapters/event_sinks/webhook.py": (OTHERS, {"daemon", "sock"}),
    "adapters/lance/callbacks.py": (CAUSE, {"__cause__"}),
    "adapters/lance/panics.py": (NAMES, {"setattr"}),
    "adapters/lance/engine.py": (OTHERS, {"setattr"}),
    "adapters/manifest_stores/columns.py": (MESSAGES, {"id", "parent_id"}),
    "adapters/manifest_stores/table_data.py": (
        MESSAGES,
        {"encoding", "file_size_bytes", "logical_type", "nullable", "path", "unenforced_primary_key"},
    ),
    "adapters/manifest_stores/table_versions.py": (
        MESSAGES,
        {
            *("file_type", "id", "max_fragment_id", "num_deleted_rows", "path", "predicate", "read_version"),
            "setattr",
        },
    ),
    "adapters/object_stores/fsspec_store.py": (OTHERS, {"closed"}),
    "adapters/rest/connection.py": (OTHERS, {"check_hostname"}),
    "adapters/rest/errors.py": ("the code of the server, on its error", {"setattr"}),
    "application/commits/protocol_runner.py": (CAUSE, {"__cause__"}),
    "application/rows/appends.py": (
        RECORDS,
        {
            *("base", "committed", "error", "is_owed", "is_owed_elsewhere"),
            *("mark", "is_written", "pace", "patient_from"),
        },
    ),
    "application/rows/committer.py": (CAUSE, {"__cause__"}),
    "application/rows/upserts.py": (RECORDS, {"done", "error", "pace"}),
    "entrypoints/namespace/rest.py": (NAMES, {"__doc__", "__name__", "__qualname__", "setattr"}),
    "entrypoints/namespace/tables.py": (
        MODELS,
        {"is_only_declared", "metadata", "stats", "table_uri", "var_schema", "version"},
    ),
    "entrypoints/rest/app.py": (OTHERS, {"default", "health", "metrics", "redirect_slashes"}),
    "entrypoints/rest/logs.py": (OTHERS, {"excepthook"}),
    "hive/address.py": (OTHERS, {"check_hostname"}),
    "entrypoints/spark/arrow_types.py": (OTHERS, {"metadata"}),
    "entrypoints/spark/internals/driver.py": (OTHERS, {"propagate_java_exceptions"}),
    "testing/conformance.py": (OTHERS, {"text"}),
}
"""The reason, and the attributes, of each module that may assign some."""


def assigned(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that a module assigns, deletes or binds in another way."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node


def set_by_name(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of `setattr` and `delattr`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ("setattr", "delattr", "__setattr__", "__delattr__"):
                yield node


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def declared(tree: ast.AST) -> set[str]:
    """Return the attributes of the classes of a module."""
    own = {node.attr for node in assigned(tree) if is_own(node.value)}
    fields = (each for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in node.body)
    return own | {
        each.target.id for each in fields if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def found_in(source: str) -> set[str]:
    """Return the attributes that a module assigns to objects of other modules; `setattr` for calls of it."""
    tree = ast.parse(source)
    own = declared(tree)
    foreign = {node.attr for node in assigned(tree) if not is_own(node.value) and node.attr not in own}
    return foreign | {"setattr" for call in set_by_name(tree) if not is_own(call.args[0])}


def test_no_module_assigns_attributes_of_objects_of_others() -> None:
    """The modules of `lancekeep.format` are left out: they have functions over messages, and no parts."""
    paths = [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE / "format"]
    found = {path.relative_to(SOURCE).as_posix(): found_in(path.read_text()) for path in paths}
    assert {path: names for path, names in found.items() if names} == {
        path: names for path, (_, names) in EXCEPTIONS.items()
    }


@pytest.mark.parametrize(
    "source",
    [
        "versions.check = check",
        "self.ledger.commits = other",
        "a, (b.x, c) = values",
        "versions.count += 1",
        "versions.check: Check = check",
        "del versions.check",
        "with act() as versions.check: pass",
        "for versions.check in checks: pass",
        "setattr(versions, 'check', check)",
        "object.__setattr__(versions, 'check', check)",
    ],
)
def test_each_kind_of_assignment_is_found(source: str) -> None:
    assert found_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self): self.x = 1\n\ndef copied(other: A): other.x = 2",
        "class A:\n    x: int = 1\n\ndef changed(a: A): a.x = 2",
        "class A:\n    def name(self, name): setattr(self, name, 1)",
    ],
)
def test_a_module_may_change_its_own_objects(source: str) -> None:
    assert not found_in(source)
