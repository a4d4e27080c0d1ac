"""The registry of behaviours, and what several modules share."""

from __future__ import annotations

from collections.abc import Callable

from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import Behaviour, Bench, Capability

(
    NAMESPACES,
    PROPERTIES,
    LOCATIONS,
    REGISTER,
    RENAME,
    VERSIONS,
    DATA,
    TAGS,
    BRANCHES,
    INDEXES,
    SCHEMA,
    TRANSACTIONS,
    VIEWS,
) = Capability

CHILD = ("parent",)
TAKEN = errors.TableAlreadyExistsError, errors.NamespaceAlreadyExistsError

UNIQUE = "Concepts: The name of any object must be unique among all other objects that share the same parent namespace."
OPERATION_404 = "Operations on a namespace or table `id` answer 404 where there is none."
DECLARED = (
    "ListTablesRequest.include_declared: When true (default), includes tables that have been declared in the "
    "namespace but not yet created on storage. When false, only tables with storage components are returned."
)

Check = Callable[[Bench], None]


class Behaviours(list[Behaviour]):
    """The behaviours of one module, in order."""

    def add(self, name: str, sentence: str, *needs: Capability, below_too: bool = True) -> Callable[[Check], Check]:
        """Register the decorated check.

        Args:
            name: the id of the behaviour.
            sentence: the sentence of the specification.
            needs: the capabilities that the check uses.
            below_too: register it also in a namespace below the root, as ``{name}@child``.
        """

        def register(check: Check) -> Check:
            self.append(Behaviour(name, sentence, frozenset(needs), check))
            if below_too:
                self.append(Behaviour(f"{name}@child", sentence, frozenset((*needs, NAMESPACES)), check, CHILD))
            return check

        return register
