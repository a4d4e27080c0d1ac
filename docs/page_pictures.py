"""Write docs/images/page-*.png from the page of a catalog in Chromium: ``python docs/page_pictures.py``.

The catalog is made in a temporary directory. Each picture is named by its view and the width of its window.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

import lancekeep

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browsers import NARROW, WIDE, chromium, visiting
from pictures import png
from rest_server import SETTINGS, running

from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import SEGMENTS
from lancekeep.entrypoints.page.serving import page_of
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.setup import security_of

IMAGES = Path(__file__).parent / "images"
PICTURES = (
    ("catalog", "/?namespace=ml&sort=size", WIDE, 400, "light"),
    ("table", "/t/ml.products", WIDE, 650, "dark"),
    ("table", "/t/ml.products", NARROW, 600, "light"),
)
"""The name, the address, the width, the height and the colours of each picture."""


def products(ids: range, chance: np.random.Generator) -> pa.Table:
    """Return rows with photos and embeddings."""
    photos = []
    for at in ids:
        colour = bytes([60 + at * 37 % 180, 90 + at * 23 % 120, 220 - at * 29 % 150])
        photos.append(png(2, 2, colour * 2 + bytes(255 - each for each in colour) * 2))
    walks = chance.normal(size=(len(ids), 1536)).cumsum(axis=1).astype(np.float32)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "name": [f"product {at}" for at in ids],
            "price": [round(5 + at * 1.37 % 90, 2) for at in ids],
            "photo": photos,
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(walks.ravel()), 1536),
            "attributes": [{"colours": ["red", "blue"], "stock": at % 17} for at in ids],
        }
    )


@contextmanager
def site() -> Iterator[str]:
    """Serve a catalog, and yield its URL."""
    chance = np.random.default_rng(7)
    with (
        tempfile.TemporaryDirectory(prefix="lake-") as directory,
        lancekeep.connect(
            f"{directory}/lake", commit_store=f"sqlite://{directory}/c.db", committer="ada@etl"
        ) as catalog,
    ):
        for namespace in ("ml", "ml.experiments", "ml.staging", "sales"):
            catalog.create_namespace(namespace)
        catalog.write("ml.products", products(range(40), chance))
        catalog.tags.create("ml.products", "launch", 1)
        for start in (40, 60, 80):
            catalog.write("ml.products", products(range(start, start + 20), chance), "append")
        catalog.branches.create("ml.products", "new-model")
        catalog.data.delete("ml.products", "id % 10 = 3")
        for name, rows in (("clicks", 200_000), ("features", 50_000), ("labels", 8_000), ("reviews", 300)):
            catalog.write(f"ml.{name}", pa.table({"id": range(rows), "value": chance.normal(size=rows)}))
        page = page_of(catalog, SETTINGS, security_of(SETTINGS, {}))
        with running(create_app(CatalogNamespace(catalog), SETTINGS, others=dict.fromkeys(SEGMENTS, page))) as uri:
            yield uri


def main() -> None:
    """Write every picture."""
    with site() as uri, chromium() as browser:
        for name, address, width, height, scheme in PICTURES:
            with visiting(browser, uri, width=width) as visitor:
                visitor.page.set_viewport_size({"width": width, "height": height})
                visitor.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
                visitor.visit(address)
                visitor.page.wait_for_load_state("networkidle")
                visitor.page.screenshot(path=IMAGES / f"page-{name}-{width}.png")


if __name__ == "__main__":
    main()
