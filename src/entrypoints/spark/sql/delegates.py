"""Generate Java classes that delegate to Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lancekeep.entrypoints.spark.internals.compiler import class_loader
from lancekeep.entrypoints.spark.internals.driver import Java


def delegating_methods(java: Java, interfaces: Iterable[str], target: str) -> str:
    """Return the source of methods that call the methods of ``target``.

    All methods of the interfaces are there. Defaults are overridden, too. ``initialize`` is left out. Of methods that
    several interfaces have, the first counts.

    Args:
        java: As of `Java`.
        interfaces: Names of interfaces.
        target: A Java expression.
    """
    methods: dict[str, str] = {}
    for name in interfaces:
        for signature, method in _methods(java, name, target):
            methods.setdefault(signature, method)
    return "\n".join(methods.values())


def _methods(java: Java, interface: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the parameters of each method, and its source."""
    modifier = java("java.lang.reflect.Modifier")
    for method in class_loader(java).loadClass(interface).getMethods():
        if modifier.isStatic(method.getModifiers()) or method.getName() == "initialize":
            continue
        kinds = [kind.getCanonicalName() for kind in method.getParameterTypes()]
        thrown = [kind.getCanonicalName() for kind in method.getExceptionTypes()]
        result = method.getReturnType().getCanonicalName()
        parameters = ", ".join(f"{kind} a{at}" for at, kind in enumerate(kinds))
        arguments = ", ".join(f"a{at}" for at in range(len(kinds)))
        signature = f"{method.getName()}({parameters})"
        declared = method.getDeclaringClass().getCanonicalName()
        call = f"{'' if result == 'void' else 'return '}(({declared}) {target}).{method.getName()}({arguments});"
        throws = f" throws {', '.join(thrown)}" if thrown else ""
        yield signature, f"    public {result} {signature}{throws} {{ {call} }}"
