"""The web page in Chromium: navigation, keyboard, search, hostile names, accessibility."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from browsers import NAMED, NARROW, chromium, visiting
from memory_catalogs import World
from pictures import png
from playwright.sync_api import Browser, expect
from rest_server import SETTINGS, running

from lancekeep import Catalog, connect
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.naming import NamingScheme
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import SEGMENTS
from lancekeep.entrypoints.page.serving import page_of
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.format.manifest import file_of, message_span, parse_message
from lancekeep.format.messages import Manifest

HOSTILE = "<img src=x onerror=alert(1)>"
RIGHT_TO_LEFT = "abc\u202etxt.exe"

PAGES = (
    "/",
    "/?namespace=ml",
    "/search?q=t",
    "/t/ml.features",
    "/t/ml.features/history",
    "/t/ml.features/diff?from=1&to=3",
    "/t/ml.features/files",
    "/t/ml.features/commits",
    "/commits",
    "/dropped",
    "/compare?a=ml.features&b=ml.images",
    "/t/ml.deep.files/file",
    "/api",
    "/api?operation=QueryTable",
)
"""Pages that axe-core checks in both colour schemes and widths."""
MORE_PAGES = (
    "/?namespace=ml&sort=change",
    "/search?q=",
    "/t/ml.features?filter=nope&page=2",
    "/t/ml.images",
    "/compare",
    "/t/ml.deep.files/files",
    "/t/ml.deep.files/commits",
    "/api?model=QueryTableRequest",
)
"""Pages like them, with other contents."""

WORDS = r"""[...document.querySelectorAll("td code")].flatMap((code) => {
  const text = code.firstChild;
  return [...text.data.matchAll(/\w+/g)].map((word) => {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return [word[0], new Set([...range.getClientRects()].map((line) => line.top)).size];
  });
})"""
"""Returns each word of code in the cells of tables, and on how many lines it is."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with connect(str(tmp_path_factory.mktemp("browser") / "lake")) as catalog:
        properties = {"owner": HOSTILE, "note": RIGHT_TO_LEFT, "long": "x" * 5000}
        catalog.create_namespace("ml", properties)
        catalog.create_namespace("ml.deep")
        for name in (HOSTILE.replace("/", ""), RIGHT_TO_LEFT, "long" * 40):
            catalog.write(["ml", name], pa.table({"id": [1]}))
        catalog.write("ml.features", features(range(100)))
        # The catalog takes no text that is not UTF-8; the engine does.
        catalog.open("ml.features").insert(features(range(100, 130), last=b"invalid \xff\xfe"))
        catalog.data.delete("ml.features", "id < 5")
        catalog.tags.create("ml.features", "first", 1)
        catalog.branches.create("ml.features", "trial")
        catalog.write("ml.deep.source", pa.table({"id": range(1000), "text": [HOSTILE] * 1000}))
        catalog.clone("ml.deep.source", "ml.deep.files")
        catalog.commit_change("ml.deep.files", indexed)
        catalog.write("ml.deep.files", pa.table({"id": range(300), "text": [RIGHT_TO_LEFT] * 300}), "append")
        catalog.data.delete("ml.deep.files", "id < 200")
        catalog.clone("ml.deep.files", "ml.deep.clone")
        catalog.write("ml.gone", pa.table({"id": [1]}))
        catalog.drop_table("ml.gone", keep=timedelta(days=7))
        pixels = [bytes([at * 40, 90, 250 - at * 40]) * 64 for at in range(6)]
        catalog.write("ml.gone", pa.table({"id": [1]}))
        catalog.drop_table("ml.gone", keep=3600)
        catalog.write("ml.images", pa.table({"id": range(6), "photo": [png(8, 8, each) for each in pixels]}))
        yield catalog


def indexed(dataset: Any) -> Any:
    dataset.create_scalar_index("id", "BTREE")
    return dataset


def features(ids: range, last: bytes = b"last") -> pa.Table:
    """Return rows with vectors, and with texts that no page may obey; the last row has a text of its own."""
    vectors = pa.array([(at * 7 + row) % 31 / 31 for row in ids for at in range(1536)], pa.float32())
    texts = {5: HOSTILE, 6: RIGHT_TO_LEFT, 7: "x" * 10_000_000}
    encoded = [texts.get(row, f"row {row}").encode() for row in ids]
    encoded[-1] = last
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": pa.array(encoded, pa.binary()).view(pa.string()),
            "embedding": pa.FixedSizeListArray.from_arrays(vectors, 1536),
            "nested": [{"tags": ["a", "b"], "size": row} for row in ids],
        }
    )


@pytest.fixture(scope="module")
def uri(lake: Catalog) -> Iterator[str]:
    with served(lake) as uri:
        yield uri


def served(catalog: Catalog, settings: ServerSettings = SETTINGS) -> Any:
    """Serve a catalog with its page in this process."""
    security = security_of(settings, {})
    app = create_app(
        CatalogNamespace(catalog),
        settings,
        around=security.around,
        middleware=security.middleware,
        others=dict.fromkeys(SEGMENTS, page_of(catalog, settings, security)),
    )
    return running(app, settings)


def test_visitor_finds_a_table_by_links(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/")
        visitor.page.get_by_role("link", name="ml/").click()
        expect(visitor.page.get_by_role("heading", level=1)).to_have_text("ml")
        expect(visitor.page.get_by_role("link", name="features", exact=True)).to_have_attribute(
            "href", "/t/ml.features"
        )
        visitor.page.get_by_role("link", name="change").click()
        expect(visitor.page.get_by_role("row")).to_have_count(6)
        visitor.page.go_back()
        expect(visitor.page.get_by_role("heading", level=2)).to_have_count(2)


def test_search_shows_tables_while_the_visitor_types(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/")
        box = visitor.page.get_by_role("searchbox")
        box.press_sequentially("FEAT")
        expect(visitor.page.get_by_role("link", name="ml.features")).to_be_visible()
        expect(box).to_be_focused()
        box.fill("")
        expect(visitor.page.get_by_role("link", name="ml/")).to_be_visible()
        box.fill(HOSTILE[:9])
        expect(visitor.page.get_by_role("status")).to_contain_text("1 match")


def test_search_that_fails_shows_the_error(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/")
        visitor.page.route("**/search?*part=results*", lambda route: route.fulfill(status=503))
        visitor.page.get_by_role("searchbox").fill("feat")
        visitor.page.wait_for_url(f"{uri}/search?q=feat")
        visitor.errors.clear()  # the browser reports each response of 503


def test_page_works_without_scripts(browser: Browser, uri: str) -> None:
    with visiting(browser, uri, java_script_enabled=False) as visitor:
        visitor.visit("/")
        visitor.page.get_by_role("searchbox").fill("features")
        visitor.page.get_by_role("button", name="Search").click()
        expect(visitor.page.get_by_role("link", name="ml.features")).to_be_visible()


def test_keyboard_reaches_the_content_first(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/")
        visitor.page.keyboard.press("Tab")
        skip = visitor.page.get_by_role("link", name="Skip to content")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        visitor.page.keyboard.press("Enter")
        visitor.page.keyboard.press("Tab")
        expect(visitor.page.get_by_role("main").get_by_role("link").first).to_be_focused()


def test_hostile_names_and_properties_are_text(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/?namespace=ml")
        visitor.page.get_by_text("properties").click()
        expect(visitor.page.get_by_role("main")).to_contain_text(HOSTILE)
        expect(visitor.page.get_by_role("main")).to_contain_text("abc\\u202etxt.exe")
        expect(visitor.page.get_by_role("main")).to_contain_text("(5,000 characters)")
        assert visitor.page.locator("img").count() == 0
        assert "\u202e" not in visitor.page.content()


def test_visitor_signs_in_and_out(browser: Browser, lake: Catalog, tmp_path: Path) -> None:
    _, key = KeyFile(tmp_path / "keys.json").create("ada", ())
    with (
        served(lake, ServerSettings(keys=str(tmp_path / "keys.json"), log_level="error")) as address,
        visiting(browser, address.replace("127.0.0.1", NAMED)) as visitor,
    ):
        visitor.visit("/?namespace=ml")
        visitor.require_sound()
        visitor.page.get_by_label("API key or token").fill(key)
        visitor.page.keyboard.press("Enter")
        expect(visitor.page).to_have_url(f"{visitor.uri}/?namespace=ml")
        expect(visitor.page.get_by_role("banner")).to_contain_text("key:ada")
        assert visitor.page.evaluate("document.cookie") == ""
        visitor.page.get_by_role("button", name="Sign out").click()
        expect(visitor.page).to_have_url(f"{visitor.uri}/sign-in")
        visitor.visit("/")
        expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Sign in")


def test_words_in_tables_stay_whole_on_a_phone(browser: Browser, uri: str) -> None:
    with visiting(browser, uri, width=NARROW) as visitor:
        visitor.visit("/t/ml.features")
        words = visitor.page.evaluate(WORDS)
    assert {"lancekeep", "int64"} <= {word for word, _ in words}
    assert [word for word, lines in words if lines > 1] == []


def test_permalink_keeps_version_filter_and_page(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/t/ml.features")
        visitor.page.get_by_label("Filter", exact=True).fill("id >= 50")
        visitor.page.keyboard.press("Enter")
        visitor.page.get_by_role("link", name="Next rows").click()
        first = visitor.page.get_by_role("region", name="Rows").get_by_role("row").nth(1)
        expect(first).to_contain_text("row 70")
        link = visitor.page.get_by_role("link", name="with this filter, page 2").get_attribute("href")
    with visiting(browser, uri) as other:
        other.visit(str(link))
        expect(other.page.get_by_role("region", name="Rows").get_by_role("row").nth(1)).to_contain_text("row 70")
        expect(other.page.get_by_role("heading", level=1)).to_contain_text("version 3")


def test_hostile_rows_are_text_and_vectors_are_pictures(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        answer = visitor.page.goto(f"{uri}/t/ml.features")
        assert answer is not None
        assert len(answer.body()) <= 60_000
        rows = visitor.page.get_by_role("region", name="Rows")
        for text in (HOSTILE, "abc\\u202etxt.exe", "(10,000,000 characters)"):
            expect(rows).to_contain_text(text)
        assert rows.get_by_role("img").count() == 20
        visitor.visit("/t/ml.features?filter=id+%3D+129")
        expect(visitor.page.get_by_role("alert")).to_contain_text("invalid utf-8")


def test_images_of_a_table_load(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/t/ml.images")
        pictures = visitor.page.get_by_role("region", name="Rows").get_by_role("img")
        expect(pictures).to_have_count(6)
        for picture in pictures.all():
            picture.scroll_into_view_if_needed()
            expect(picture).to_have_js_property("naturalWidth", 8)


def test_any_two_versions_are_compared(browser: Browser, uri: str) -> None:
    with visiting(browser, uri) as visitor:
        visitor.visit("/t/ml.features")
        visitor.page.get_by_role("link", name="History").click()
        visitor.page.get_by_label("Compare version").fill("1")
        visitor.page.get_by_role("button", name="Show the differences").click()
        expect(visitor.page).to_have_url(re.compile(r"/diff\?from=1&to=3"))
        expect(visitor.page.get_by_role("main")).to_contain_text("Append")


def with_versions(dataset: Path, last: int) -> None:
    """Give a dataset versions up to ``last``, each with the rows of version 2."""
    name = NamingScheme.V2.final_name
    content = (dataset / "_versions" / name(2)).read_bytes()
    begin, _ = message_span(content)
    message = parse_message(Manifest, content)
    began = message.timestamp.seconds
    for version in range(3, last + 1):
        message.version, message.timestamp.seconds = version, began + version
        path = dataset / "_versions" / name(version)
        path.write_bytes(file_of(message.SerializeToString(), head=content[: begin - 4]))


def test_history_of_ten_thousand_versions(browser: Browser, tmp_path: Path) -> None:
    last = 10_000
    with connect(str(tmp_path / "lake")) as catalog:
        catalog.write("t", pa.table({"id": range(100)}))
        catalog.write("t", pa.table({"id": range(100, 130)}), "append")
        with_versions(Path(catalog.describe_table("t").uri.removeprefix("file://")), last)
    with (
        connect(str(tmp_path / "lake")) as catalog,
        served(catalog) as uri,
        visiting(browser, uri) as visitor,
    ):
        catalog.tags.create("t", "middle", 5000)
        answer = visitor.page.goto(f"{uri}/t/t/history")
        assert answer is not None
        assert len(answer.body()) <= 60_000
        rows = visitor.page.get_by_role("region", name="Versions").get_by_role("rowheader")
        expect(rows).to_have_text([str(version) for version in range(last, last - 25, -1)])
        visitor.page.get_by_role("link", name="Older versions").click()
        expect(rows.first).to_have_text(str(last - 25))
        visitor.visit("/t/t/history?before=5001")
        expect(rows.first).to_have_text("5000")
        expect(visitor.page.get_by_role("main")).to_contain_text("tag middle")
        visitor.visit("/t/t/history?before=26")
        expect(rows.last).to_have_text("1")
        expect(visitor.page.get_by_role("link", name="Older versions")).to_have_count(0)
        visitor.page.get_by_role("link", name="Newest versions").click()
        expect(rows.first).to_have_text(str(last))
        visitor.page.get_by_label("Compare version").fill("1")
        visitor.page.get_by_role("button", name="Show the differences").click()
        expect(visitor.page).to_have_url(re.compile(rf"/diff\?from=1&to={last}"))
        expect(visitor.page.get_by_role("main")).to_contain_text("130")
        visitor.require_sound()


class Million:
    """The entries of a thousand namespaces with a thousand tables each; none is in memory."""

    def __init__(self, world: World) -> None:
        self.guarantees = world.manifest.view().guarantees
        self.properties: dict[str, str] = {}
        self.version = 1

    def find(self, object_id: str) -> ManifestEntry | None:
        return ManifestEntry(object_id, NAMESPACE) if "$" not in object_id else None

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        kind = TABLE if parent.names else NAMESPACE
        names = [f"{kind}{at:03}" for at in range(1000)] if object_type == kind else []
        found = [name for name in names if after is None or name > after]
        return found[:limit], found[limit - 1] if limit is not None and len(found) > limit else None

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        entry = ManifestEntry("namespace000$table000", object_type, "t")
        for at in range(1_000_000):
            object.__setattr__(entry, "object_id", f"namespace{at // 1000:03}$table{at % 1000:03}")
            yield entry

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        return self.all_of(TABLE)


def test_catalog_of_a_million_tables(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    million = Million(world)
    monkeypatch.setattr(world.manifest, "view", lambda: million)
    with served(world.catalog) as uri, visiting(browser, uri) as visitor:
        answer = visitor.page.goto(uri)
        assert answer is not None
        assert len(answer.body()) <= 60_000
        visitor.page.get_by_role("link", name="Next page").click()
        visitor.page.get_by_role("link", name="namespace150/").click()
        expect(visitor.page.get_by_role("main").get_by_role("listitem")).to_have_count(100)
        visitor.page.get_by_role("searchbox").fill("777.table999")
        expect(visitor.page.get_by_role("link", name="namespace777.table999")).to_be_visible()
        expect(visitor.page.get_by_role("status")).to_contain_text("of 1,000,000 tables")


@pytest.mark.parametrize("pages", [PAGES, MORE_PAGES], ids=["each kind", "more"])
def test_every_page_is_accessible_and_fits(browser: Browser, uri: str, pages: Sequence[str]) -> None:
    with visiting(browser, uri) as visitor:
        for address in pages:
            visitor.visit(address)
            visitor.require_sound()
