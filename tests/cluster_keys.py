"""The certificates of servers that share committers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lancekeep.composition import Cluster

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")


def cluster_in(folder: Path, authority: str = "authority") -> Cluster:
    """Make an authority and a certificate that it has signed, and return a cluster of this machine.

    Args:
        folder: Where the files are.
        authority: The name of the authority.
    """
    root, root_key = folder / f"{authority}.pem", folder / f"{authority}.key"
    if not root.exists():
        _openssl("req", "-x509", *_CURVE, "-subj", f"/CN={authority}", "-out", str(root), "-keyout", str(root_key))
    certificate, key, request = (folder / f"{authority}-server.{kind}" for kind in ("pem", "key", "csr"))
    _openssl("req", "-new", *_CURVE[:5], "-subj", "/CN=server", "-out", str(request), "-keyout", str(key))
    signed = ("-CA", str(root), "-CAkey", str(root_key), "-CAcreateserial", "-days", "1")
    _openssl("x509", "-req", "-in", str(request), *signed, "-out", str(certificate))
    return Cluster("127.0.0.1", range(0), str(certificate), str(key), str(root))


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
