"""Compile Java with the compiler that Spark ships; a driver needs no JDK."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lancekeep.entrypoints.spark.internals import classes
from lancekeep.entrypoints.spark.internals.driver import Driver, Java


def class_loader(java: Java) -> Any:
    """Return the loader that has the classes of the driver."""
    return java("java.lang.Thread").currentThread().getContextClassLoader()


def cooked(java: Java, source: str) -> Any:
    """Compile a Java source; return the compiler, which has the classes."""
    compiler = java(classes.COMPILER)()
    compiler.setParentClassLoader(class_loader(java))
    compiler.cook(source)
    return compiler


def compiled(java: Java, source: str) -> dict[str, bytes]:
    """Compile a Java source; return the bytes of its classes by name."""
    codes = cooked(java, source).getBytecodes()
    return {name: bytes(codes[name]) for name in codes}


def instance(driver: Driver, source: str, name: str) -> Any:
    """Compile a Java source; return an object of one of its classes.

    Args:
        driver: The driver.
        source: The source.
        name: The name of the class, whose constructor takes nothing.
    """
    kind = cooked(driver.java, source).getClassLoader().loadClass(name)
    return kind.getConstructors()[0].newInstance(driver.array("java.lang.Object", []))


def loaded(java: Java, name: str, write: Callable[[], str]) -> Any:
    """Return a class of the driver's loader; on first use in a JVM, compile it.

    Args:
        java: As of `Java`.
        name: The name of the class.
        write: Returns its source.
    """
    loader = class_loader(java)
    if java(classes.CLASS_LOADING).classIsLoadable(name):
        return loader.loadClass(name)
    with tempfile.TemporaryDirectory() as directory:
        codes = compiled(java, write())
        for each, code in codes.items():
            path = Path(directory, f"{each.replace('.', '/')}.class")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(code)
        loader.addURL(java("java.io.File")(directory).toURI().toURL())
        for each in codes:
            loader.loadClass(each)  # once loaded, a class needs no file
        return loader.loadClass(name)
