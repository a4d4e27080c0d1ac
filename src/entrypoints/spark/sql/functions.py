"""Implement Spark's interface for functions: a catalog has none."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import NamespaceNotFound
from lancekeep.entrypoints.spark.internals.classes import CATALOG, NO_SUCH_FUNCTION
from lancekeep.entrypoints.spark.internals.driver import Thrown
from lancekeep.entrypoints.spark.sql.jvm import Proxy


class FunctionCatalog(Proxy):
    """A catalog without functions, so that Spark lists and finds its own."""

    _declared: ClassVar = {"listFunctions": (NamespaceNotFound,)}

    _catalog: Catalog

    def listFunctions(self, namespace: Any) -> Any:
        self._catalog.describe_namespace(list(namespace))
        return self._jvm.array(CATALOG + "Identifier", [])

    def loadFunction(self, identifier: Any) -> NoReturn:
        raise Thrown(self._jvm.java(NO_SUCH_FUNCTION)(identifier))

    def functionExists(self, identifier: Any) -> bool:
        return False
