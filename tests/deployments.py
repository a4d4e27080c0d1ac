"""The deployments of the integration tests: an object store and a commit store each."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import attrs
import boto3

CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
ALL = ("sqlite", "files", "redis", "dynamodb", "conditional-put", "conditional-put-s3")


@attrs.frozen
class Deployment:
    """The root and the commit store of a catalog; none if the storage manages its versions."""

    root: str
    commit_store: str
    storage_options: dict[str, str] = attrs.field(factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of ``lancekeep.DirectoryNamespace``."""
        storage = {f"storage.{key}": value for key, value in self.storage_options.items()}
        vend = {"vend_input_storage_options": "true"} if storage else {}
        store = {"commit_store": self.commit_store} if self.commit_store else {}
        return {"root": self.root, **store, **storage, **vend}


def s3_options(endpoint: str) -> dict[str, str]:
    """Return storage options for a test S3 server, with Lance's names."""
    return {
        **CREDENTIALS,
        "aws_region": "us-east-1",
        "aws_endpoint": endpoint,
        "allow_http": "true",
        "aws_virtual_hosted_style_request": "false",
    }


def bucket(endpoint: str) -> str:
    """Create a bucket and return its name."""
    name = f"bucket-{uuid4().hex[:12]}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    client.create_bucket(Bucket=name)
    return name


def deployment(kind: str, directory: Path, redis_url: str, moto_endpoint: str, postgres_url: str = "") -> Deployment:
    """Return a new, empty deployment of one kind."""
    lake = str(directory / "lake")
    match kind:
        case "storage":
            return Deployment(lake, "")
        case "sqlite":
            return Deployment(lake, f"sqlite://{directory}/commits.db")
        case "files":
            return Deployment(lake, f"file://{directory}/commits")
        case "redis":
            return Deployment(lake, redis_url)
        case "postgres":
            return Deployment(lake, postgres_url)
        case "dynamodb":
            table = f"commits-{uuid4().hex[:12]}"
            return Deployment(lake, f"dynamodb://{table}?region=us-east-1&endpoint_url={moto_endpoint}")
        case "conditional-put":
            return Deployment(lake, "conditional-put://")
        case "conditional-put-s3":
            return Deployment(f"s3://{bucket(moto_endpoint)}/lake", "conditional-put://", s3_options(moto_endpoint))
    raise ValueError(kind)
