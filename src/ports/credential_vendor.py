"""The port of credential vendors: temporary credentials for one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lancekeep.domain.authorization import Action


class CredentialVendor(Protocol):
    """Issue temporary credentials.

    Every adapter keeps these invariants:

    - **Scope**: the credentials reach objects below the location, and read objects below the sources, alone. Below the
      location, `Action.READ` permits reading, `Action.WRITE` also writing, `Action.DELETE` also deleting.
    - **Expiry**: the answer states when the credentials expire, and they stay valid for some minutes at least.

    Instances may be shared between threads. No message, log or representation contains a credential.
    """

    def vend(self, location: str, action: Action, principal: str, sources: Sequence[str] = ()) -> Mapping[str, str]:
        """Return storage options that open a location, with ``expires_at_millis``.

        Args:
            location: The URI of the table's directory.
            action: What the holder may do with its objects.
            principal: The name of the holder, for the records of the issuer.
            sources: The URIs of further directories that the table reads, such as the source of a shallow clone.

        Raises:
            InvalidInput: no credentials can be limited to these directories.
            StoreUnavailable, AccessDenied: the issuer does not answer, or refuses.
        """
