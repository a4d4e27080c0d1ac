"""Temporary credentials for S3 from the AWS Security Token Service.

Servers of other makers speak its protocol, too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lancekeep.adapters.credential_vendors.locations import directory
from lancekeep.adapters.credential_vendors.remembered import Issued, Remembered
from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import AccessDenied, InvalidInput, StoreUnavailable

if TYPE_CHECKING:
    from types_boto3_sts import STSClient

LONGEST_POLICY = 2048
"""The characters of a session policy that STS accepts."""
SHORTEST, LONGEST = 900, 43_200
"""The durations that STS permits, in seconds."""

_SECRETS = ("access_key_id", "secret_access_key", "session_token", "token")
_OTHERS = re.compile(
    r"(azure|google)_.*|(access|account|master|sas)_key|(bearer|fabric_session|sas)_token|client_secret"
    r"|application_credentials|service_account(_key|_path)?"
)
"""Options of other clouds, which one configuration may hold too."""
_WILDCARDS = re.compile(r"[*?]|\$(?=\{)")
_SESSION_NAME = re.compile(r"[^\w+=,.@-]", re.ASCII)


@attrs.frozen(kw_only=True)
class Role:
    """The role whose credentials are limited and handed out.

    Attributes:
        arn: The role. Its own policy must permit what the credentials are to permit.
        duration: The time to live of credentials in seconds.
        endpoint: The URL of the service; None for AWS.
        region: The region of the service.
        partition: The first part of the names of buckets in policies: ``aws``, ``aws-cn`` or ``aws-us-gov``.
    """

    arn: str
    duration: int = 3600
    endpoint: str | None = None
    region: str | None = None
    partition: str = "aws"


class StsVendor:
    """A `CredentialVendor` that assumes a role with a session policy per table.

    Credentials are remembered per table, action and principal.

    Args:
        role: The role.
        storage_options: The storage options of the catalog. Credentials among them call the service; the others are
            part of the answer.
        now: Returns the time in seconds since 1970.
    """

    def __init__(self, role: Role, storage_options: Mapping[str, str], *, now: Callable[[], float] = time.time) -> None:
        if not SHORTEST <= role.duration <= LONGEST:
            raise InvalidInput(f"vending: duration is {role.duration}; give {SHORTEST} to {LONGEST} seconds")
        if not role.arn.startswith("arn:"):
            raise InvalidInput(f"vending: role_arn is {role.arn!r}; give the ARN of a role")
        self._role = role
        self._remembered = Remembered(now)
        own = {_plain(name): value for name, value in storage_options.items()}
        self._public = {name: value for name, value in storage_options.items() if _is_public(_plain(name))}
        self._sts = _client(role, own)

    def __repr__(self) -> str:
        return f"StsVendor({self._role.arn!r})"

    def vend(self, location: str, action: Action, principal: str, sources: Sequence[str] = ()) -> Mapping[str, str]:
        question = (location, action, principal, tuple(sources))
        return self._remembered.vend(question, partial(self._issue, location, action, principal, sources))

    def _issue(self, location: str, action: Action, principal: str, sources: Sequence[str]) -> Issued:
        policy = json.dumps(session_policy(location, action, self._role.partition, sources), separators=(",", ":"))
        if len(policy) > LONGEST_POLICY:
            raise InvalidInput(
                f"credentials cannot be limited to {location} and the {len(sources)} directories that it reads: the "
                f"session policy has {len(policy)} characters, and STS accepts {LONGEST_POLICY}. Set vend_credentials "
                "to false, and read the table through the server"
            )
        found = self._assume(policy, principal)
        options = {
            **self._public,
            "aws_access_key_id": found["AccessKeyId"],
            "aws_secret_access_key": found["SecretAccessKey"],
            "aws_session_token": found["SessionToken"],
        }
        expires = found["Expiration"].timestamp()
        return Issued(options, expires - self._role.duration, expires)

    def _assume(self, policy: str, principal: str) -> Any:
        try:
            return self._sts.assume_role(
                RoleArn=self._role.arn,
                RoleSessionName=_SESSION_NAME.sub("_", f"lancekeep-{principal}")[:64],
                DurationSeconds=self._role.duration,
                Policy=policy,
            )["Credentials"]
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            code = error.response.get("Error", {}).get("Code", "unknown")
            if status >= 500 or code == "Throttling":
                raise StoreUnavailable(f"the token service failed with {code}; try again later") from None
            raise AccessDenied(f"the token service refuses {self._role.arn}: {code}") from None
        except BotoCoreError as error:
            raise StoreUnavailable(f"the token service does not answer: {type(error).__name__}") from None


def session_policy(
    location: str, action: Action, partition: str = "aws", sources: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the session policy for a location and the sources that it reads.

    Wildcards in the locations are escaped: the name of a table may contain them.

    Raises:
        InvalidInput: A location is not a directory in an S3 bucket.
    """
    bucket, prefix = _directory(location)
    actions = ["s3:GetObject"]
    if action >= Action.WRITE:
        actions += ["s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    if action >= Action.DELETE:
        actions.append("s3:DeleteObject")
    read = [f"arn:{partition}:s3:::{'/'.join(_directory(source))}*" for source in sources]
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": actions, "Resource": f"arn:{partition}:s3:::{bucket}/{prefix}*"},
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": f"arn:{partition}:s3:::{bucket}",
                "Condition": {"StringLike": {"s3:prefix": [f"{prefix}*"]}},
            },
            *([{"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": read}] if read else []),
        ],
    }


def _directory(location: str) -> tuple[str, str]:
    """Return the bucket of a location and the prefix of its objects, as patterns of a policy."""
    bucket, prefix = directory(location, "s3", "an S3 bucket")
    return bucket, _WILDCARDS.sub(lambda found: f"${{{found[0]}}}", prefix)


def _is_public(name: str) -> bool:
    return name not in _SECRETS and _OTHERS.fullmatch(name) is None


def _plain(name: str) -> str:
    return name.lower().removeprefix("aws_")


def _client(role: Role, own: Mapping[str, str]) -> STSClient:
    try:
        client: STSClient = Session().client(
            "sts",
            aws_access_key_id=own.get("access_key_id"),
            aws_secret_access_key=own.get("secret_access_key"),
            aws_session_token=own.get("session_token") or own.get("token"),
            region_name=role.region or own.get("region") or own.get("default_region"),
            endpoint_url=role.endpoint or None,
            config=Config(connect_timeout=3, read_timeout=7, retries={"total_max_attempts": 2}),
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(f"vending: boto3 cannot make an STS client ({type(error).__name__})") from error
    return client
