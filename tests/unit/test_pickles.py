"""Nothing in the library executes stored bytes: Spark or a parent process has just made each pickle that is loaded."""

from __future__ import annotations

import ast
from pathlib import Path

import lancekeep

SOURCES = Path(lancekeep.__file__).parent
WITHIN_ONE_SPARK_JOB = {"entrypoints/spark/sql/workers.py"}
"""The protocol of Spark's own Python data sources: partitions and messages between the driver and its executors."""
OF_A_CHILD = {"entrypoints/isolation.py", "entrypoints/rest/supervised.py", "entrypoints/rest/workers.py"}
"""Tasks and results between a process and the children that it has started, by pipes and pairs of sockets."""
WITHIN_ONE_TEST = {"testing/object_store.py"}
"""The contract of an object store pickles an error and loads it at once."""
EXECUTE = {"load", "loads", "Unpickler", "eval", "exec", "read_pickle", "unpickle"}
MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}


def executing(tree: ast.AST) -> bool:
    imported = {
        name.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            return True
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in EXECUTE - {"load", "loads"}:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)):
                if owner in MODULES & imported and name in EXECUTE:
                    return True
    return False


def test_no_module_loads_pickles_of_stored_bytes() -> None:
    found = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if executing(ast.parse(path.read_text()))}
    assert found == WITHIN_ONE_SPARK_JOB | OF_A_CHILD | WITHIN_ONE_TEST
