"""Measure whether stores keep the guarantees of their adapters.

`ObjectStoreGuarantees` and `CommitStoreGuarantees` are claims about a kind of store. A server that accepts a condition
and ignores it makes them false. Each check uses the ports as a commit does. It judges by the stored bytes, never by a
reply alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from lancekeep.application.certification.checks import (
    CONTENDERS,
    DIRECTORY,
    Broken,
    Certificate,
    Check,
    Client,
    Planned,
    Progress,
    Result,
)
from lancekeep.application.certification.commit_store_checks import CommitStoreChecks
from lancekeep.application.certification.object_store_checks import ObjectStoreChecks
from lancekeep.domain.errors import LancekeepError
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectStore

__all__ = ["Certificate", "Check", "Progress", "Result", "measure"]

_LITTER = "Remove it by hand, and do not rely on drops and cleanup here"
_COMBINATION = (
    "Do not use these two stores together: an acknowledged commit could be lost. A commit store that never forgets "
    "(sqlite:// on one machine, dynamodb://) makes this storage safe"
)


def measure(
    open_objects: Callable[[], ObjectStore],
    open_rows: Callable[[ObjectStore], ExternalCommitStore] | None,
    root_key: str,
    progress: Progress,
) -> Certificate:
    """Run every check.

    The checks write below ``{root}/.lancekeep-certify-<uuid>/`` and to histories of the commit store under this
    directory. Everything is removed at the end, also if a check fails or the run is interrupted.

    Args:
        open_objects: Opens a new connection to the object store.
        open_rows: Opens a new connection to the commit store; None without a commit store.
        root_key: The key of the root.
        progress: Called before each check.

    Raises:
        StoreUnavailable, AccessDenied, NotFound: A store could not be reached, or stopped answering.
    """
    with _clients(open_objects, open_rows) as clients:
        first = clients[0]
        directory = f"{root_key}/{DIRECTORY}{uuid4()}".lstrip("/")
        objects = ObjectStoreChecks([client.objects for client in clients], directory)
        plan = objects.plan()
        rows = None
        next(first.objects.list(f"{directory}/"), None)  # fail before the first write if the store cannot be reached
        if first.rows is not None and open_rows is not None:
            rows = CommitStoreChecks(clients, directory, lambda: open_rows(open_objects()))
            first.rows.latest(first.objects.root_uri + directory)
            plan += rows.plan()
        checks = []
        with _cleaned(lambda: _clean_up(first, directory, objects, rows)):
            for number, planned in enumerate(plan):
                progress(number, len(plan) + 1, planned.name)
                checks.append(planned.run())
            progress(len(plan), len(plan) + 1, "clean_up")
        cleaning = Planned("both", "clean_up", lambda: _nothing_left(first, directory, rows), _LITTER)
        together = Planned("both", "combination", lambda: _together(first), _COMBINATION)
        checks += [cleaning.run(), together.run()]
        url = "" if first.rows is None else first.rows.url
        return Certificate(first.objects.root_uri + root_key, url, tuple(checks))


@contextmanager
def _clients(
    open_objects: Callable[[], ObjectStore], open_rows: Callable[[ObjectStore], ExternalCommitStore] | None
) -> Iterator[list[Client]]:
    clients: list[Client] = []
    try:
        for _ in range(CONTENDERS):
            objects = open_objects()
            clients.append(Client(objects, None if open_rows is None else open_rows(objects)))
        yield clients
    finally:
        for client in clients:
            if client.rows is not None:
                client.rows.close()
            client.objects.close()


@contextmanager
def _cleaned(clean_up: Callable[[], None]) -> Iterator[None]:
    """Clean up after the block. If the block fails as well, raise its error, with the cleanup error as a note."""
    try:
        yield
    except BaseException as first:
        try:
            clean_up()
        except LancekeepError as second:
            first.add_note(f"What certify wrote could not be removed: {second}")
        raise
    clean_up()


def _clean_up(client: Client, directory: str, objects: ObjectStoreChecks, rows: CommitStoreChecks | None) -> None:
    """Delete every listed key and every used key, because the listing may be wrong."""
    used = set(objects.used)
    if rows is not None and client.rows is not None:
        used |= rows.used
        for base_uri in rows.histories:
            client.rows.delete(base_uri)
    for key in used.union(info.key for info in client.objects.list(f"{directory}/")):
        client.objects.delete(key)
    client.objects.prune(directory)


def _nothing_left(client: Client, directory: str, rows: CommitStoreChecks | None) -> str:
    left = [info.key for info in client.objects.list(f"{directory}/")]
    if rows is not None and client.rows is not None:
        left += [base_uri for base_uri in rows.histories if client.rows.latest(base_uri) is not None]
    if left:
        raise Broken(f"{len(left)} objects or histories remain after the removal, first {left[0]!r}")
    return "everything that was written is removed"


def _together(client: Client) -> str:
    """Apply the static rule of `connect`: one of the stores must keep the first of two writers' commits."""
    creates = client.objects.guarantees.atomic_create
    if client.rows is None:
        raise Broken(f"{client.objects.root_uri} has no create-only write, and there is no commit store to decide")
    if client.rows.guarantees.remembers:
        return "the commit store never forgets the winner of a version" + (
            ", and the final manifest is written create-only" if creates else ""
        )
    if creates:
        return "the commit store may forget a row; the create-only write of the final manifest keeps the first content"
    raise Broken(f"{client.objects.root_uri} has no create-only write, and {client.rows.url} may forget a row")
