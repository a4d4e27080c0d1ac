"""The port of servers of the Lance namespace specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class CatalogServer(Protocol):
    """A catalog that another process serves.

    Instances may be shared between threads.

    Attributes:
        uri: where the server is, without secrets.
    """

    uri: str

    def call(
        self, operation: str, fields: Mapping[str, Any], *, data: bytes | None = None, key: str | None = None
    ) -> dict[str, Any]:
        """Perform an operation.

        A request is repeated only if the repetition cannot double its effect.

        Args:
            operation: The method of `lance_namespace.LanceNamespace`.
            fields: The fields of the request, without those that are None.
            data: The Arrow IPC stream of operations that take one.
            key: The idempotency key of a change; by default a new one. The same key in another process or at another
                time makes the call a retry.

        Returns:
            The fields of the response.

        Raises:
            LancekeepError: The error of the server, of the class that a local catalog raises.
            Unsupported: The server does not have the operation.
            StoreUnavailable: The server did not answer. The effect of a change is unknown.
            CommitUnknown: The server does not know the outcome of a commit.
            AccessDenied: The server refused the credentials.
        """

    def honours_keys(self) -> bool:
        """Return whether the server applies changes with one key only once."""

    def close(self) -> None:
        """Close the connections. Idempotent."""
