"""The port of authentication."""

from __future__ import annotations

from typing import Protocol

from lancekeep.domain.authorization import Principal


class Authenticator(Protocol):
    """Verify credentials.

    No message, log or representation contains a credential or a part of its secret. Instances may be shared between
    threads.
    """

    def authenticate(self, credential: str) -> Principal | None:
        """Return the principal of a credential; None if the credential is not valid now.

        Raises:
            StoreUnavailable: the verification needs a server that does not answer.
        """
