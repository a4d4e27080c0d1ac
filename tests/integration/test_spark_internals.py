"""Private names of Spark: `internals` alone touches them, and the installed Spark has them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import lancekeep
import pyspark_lancekeep
from lancekeep.entrypoints.spark import internals
from lancekeep.entrypoints.spark.internals import classes
from lancekeep.entrypoints.spark.internals.compiler import instance
from lancekeep.entrypoints.spark.internals.driver import Driver

SOURCES = Path(lancekeep.__file__).parent
INTERNALS = sorted(Path(internals.__file__).parent.glob("*.py"))
OTHERS = sorted(
    {
        *(SOURCES / "entrypoints" / "spark").rglob("*.py"),
        *Path(pyspark_lancekeep.__file__).parent.glob("*.py"),
        SOURCES / "spark.py",
        SOURCES / "jobs.py",
    }
    - {*INTERNALS}
)

DOCUMENTED = {
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.datasource",
    "pyspark.sql.functions",
    "pyspark.sql.streaming.datasource",
    "pyspark.sql.types",
    "pyspark.sql.udtf",
}
"""Modules in the reference of PySpark; of these, the names in ``__all__`` are published."""

ATTRIBUTES = {"_gateway", "_jconf", "_jdf", "_jsparkSession", "_jvm", "_origin"}
"""Private attributes and arguments of PySpark that `internals` uses."""

_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python."
_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
MEMBERS = {
    "org.apache.spark.SparkContext": "conf",
    "org.apache.spark.api.java.JavaSparkContext": "getConf",
    "org.apache.spark.api.python.Py4JServer": "start getListeningPort secret",
    "org.apache.spark.api.python.PythonUtils": "toSeq toScalaMap",
    "org.apache.spark.sql.ExperimentalMethods": "extraStrategies extraStrategies_$eq",
    "org.apache.spark.sql.catalyst.ProjectingInternalRow": "colOrdinals",
    "org.apache.spark.sql.catalyst.util.WriteDeltaProjections": "rowProjection rowIdProjection",
    "org.apache.spark.sql.classic.Dataset": "queryExecution",
    "org.apache.spark.sql.classic.SparkSession": "sessionUUID sessionState getActiveSession setActiveSession"
    " clearActiveSession getDefaultSession",
    "org.apache.spark.sql.execution.QueryExecution": "executedPlan",
    "org.apache.spark.sql.execution.SparkPlan": "executeCollect",
    "org.apache.spark.sql.internal.SessionState": "catalogManager experimentalMethods",
    _LOGICAL + "WriteDelta": "projections query",
    _PYTHON + "PythonWriterCommitMessage": "pickledMessage",
    classes.ARTIFACTS: "getCurrentJobArtifactState",
    classes.CLASS_LOADING: "classIsLoadable",
    classes.COLUMNS: "structTypeToV2Columns",
    classes.COLUMN_STATISTICS: "fromMap",
    classes.RELATION: "v1StatsToV2Stats",
    classes.COMPILER: "cook getBytecodes getClassLoader setParentClassLoader",
    classes.PYTHON_SCAN: "toMicroBatchStream",
    classes.PYTHON_SOURCE: "setShortName",
    classes.PYTHON_WRITE: "toStreaming",
    classes.ROW: "setLong",
    classes.ROW_OPERATIONS: "DELETE_OPERATION UPDATE_OPERATION INSERT_OPERATION",
    classes.SETTINGS: "get getConfString",
}
"""Methods of the JVM that `internals` calls and that Spark does not publish."""

PLAIN = {"conf", "get", "getActiveSession", "getClassLoader", "getConf", "query", "start"} | {
    "toMicroBatchStream",
    "toStreaming",
}
"""Names of methods that published classes have, too."""
FIELDS = {"catalogs"}
"""Private fields that `internals` opens by reflection."""
REFLECTION = {"getDeclaredField", "getDeclaredMethod", "setAccessible"}

PUBLISHED = re.compile(r"@org\.apache\.spark\.annotation\.(Stable|Evolving|Experimental|Unstable|DeveloperApi)\b")


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module, docstrings left out."""
    documentation = {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation:
            yield node.value


def private_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if re.match(r"(pyspark|py4j)\b", name.name) and name.name not in DOCUMENTED:
                    yield name.name
        elif isinstance(node, ast.ImportFrom) and re.match(r"(pyspark|py4j)\b", node.module or ""):
            module = str(node.module)
            published = getattr(import_module(module), "__all__", None) if module in DOCUMENTED else ()
            for name in node.names:
                whole = f"{module}.{name.name}"
                listed = published is None or name.name in published or whole in DOCUMENTED
                if name.name.startswith("_") or not listed:
                    yield whole


def touched(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module gets of other objects than its own."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name


def private(source: str) -> set[str]:
    """Return the private names of Spark that a source touches."""
    tree = ast.parse(source)
    members = {name for names in MEMBERS.values() for name in names.split()} - PLAIN
    found = {name for name in touched(tree) if name in ATTRIBUTES | REFLECTION | members or name.startswith("_j")}
    named = {text for text in texts(tree) if re.search(r"org\.apache\.spark|org\.codehaus|\bscala\.|\bpy4j\b", text)}
    return {*private_imports(tree), *found, *named}


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(SOURCES.parent)))
def test_other_modules_touch_no_private_name(path: Path) -> None:
    assert private(path.read_text()) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from py4j.protocol import Py4JError",
        "from pyspark import cloudpickle",
        "from pyspark.sql.pandas.types import to_arrow_schema",
        "from pyspark.sql.types import _parse_datatype_json_string",
        "import pyspark.java_gateway",
        "frame._jdf",
        "hasattr(spark, '_jsparkSession')",
        "SparkConf(_jconf=conf)",
        "session.sessionState()",
        "java('org.apache.spark.sql.internal.SQLConf')",
    ],
)
def test_private_names_are_found(source: str) -> None:
    assert private(source)


def test_tables_of_private_names_are_complete() -> None:
    used = {name for path in INTERNALS for name in touched(ast.parse(path.read_text()))}
    ours = {"_args", "_kwargs"}
    assert {name for name in used if re.match("_[a-z]", name)} - ours == ATTRIBUTES


def test_release_is_a_checked_one() -> None:
    assert pyspark.__version__.rpartition(".")[0] in internals.CHECKED


LISTING = """
public class Members {
    private static Class of(String name) throws ClassNotFoundException {
        return Class.forName(name, false, Thread.currentThread().getContextClassLoader());
    }
    public String name(String name) throws ClassNotFoundException { return of(name).getName(); }
    public String methods(String name) throws ClassNotFoundException {
        return java.util.Arrays.toString(of(name).getMethods());
    }
    public String fields(String name) throws ClassNotFoundException {
        return java.util.Arrays.toString(of(name).getDeclaredFields());
    }
    public String annotations(String name) throws ClassNotFoundException {
        return java.util.Arrays.toString(of(name).getAnnotations());
    }
}
"""


@pytest.fixture(scope="module")
def members(spark: SparkSession) -> Any:
    return instance(Driver(spark), LISTING, "Members")


def test_python_objects_have_the_attributes(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException) as raised:
        spark.table("unknown")
    holders: Iterable[Any] = (spark, spark.sparkContext, spark.range(1), raised.value, spark.sparkContext.getConf())
    assert {name for name in ATTRIBUTES for holder in holders if hasattr(holder, name)} == ATTRIBUTES


@pytest.mark.parametrize(
    "name", [value for key, value in vars(classes).items() if key.isupper() and re.search(r"\.[A-Z]\w+$", str(value))]
)
def test_class_exists(members: Any, name: str) -> None:
    assert members.name(name) == name


@pytest.mark.parametrize("name", MEMBERS)
def test_class_has_the_methods(members: Any, name: str) -> None:
    found = set(re.findall(r"\.([\w$]+)\(", members.methods(name)))
    assert set(MEMBERS[name].split()) - found == set()


def test_session_keeps_catalogs_in_the_field(members: Any, spark: SparkSession) -> None:
    manager: Any = spark._jsparkSession.sessionState().catalogManager()
    found = members.fields(manager.getClass().getName())
    assert set(re.findall(r"\.([\w$]+)[,\]]", found)) >= FIELDS


def test_interfaces_outside_are_published(members: Any) -> None:
    """A prefix of published interfaces gives no way to a private class."""
    used = {
        getattr(classes, node.left.id) + node.right.value
        for path in OTHERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Name) and hasattr(classes, node.left.id)
        if isinstance(node.right, ast.Constant)
    }
    assert len(used) > 40
    assert {name for name in used if not PUBLISHED.search(members.annotations(name.partition("$")[0]))} == set()
