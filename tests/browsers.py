"""Chromium for tests of the page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

WIDE, NARROW = 1280, 390
"""The widths of a screen and of a phone."""
NAMED = "lake.test"
"""A name of this machine. Browsers trust it less than a loopback address: they name no fetch metadata to it."""

_WITHOUT_TLS = "The Cross-Origin-Opener-Policy header has been ignored"
"""What browsers report about each page without TLS of a host that is not the loopback address."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
_AXE = Axe()
_LAYOUT = ("color-contrast", "scrollable-region-focusable", "target-size", "region", "bypass")
_SIGHTS: tuple[tuple[int, Any, tuple[str, ...]], ...] = (
    (WIDE, "light", ()),
    (WIDE, "dark", ("color-contrast",)),
    (NARROW, "dark", ("color-contrast",)),
    (NARROW, "light", _LAYOUT),
)
"""The widths and the colours in which a page is checked, and the rules; none for all rules."""
expect.set_options(timeout=60_000)  # on a busy machine, five seconds are not enough


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the Chromium of this machine without a window; skip the test if there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("Chromium is missing: install the package chromium of your distribution (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=[*_OPTIONS, f"--host-resolver-rules=MAP {NAMED} 127.0.0.1"]
        )
        try:
            yield browser
        finally:
            browser.close()


@attrs.define(slots=False)  # Playwright keeps its wrappers of methods as attributes
class Visitor:
    """A browser window at one site.

    Attributes:
        page: The window.
        uri: The site.
        elsewhere: The URLs of other hosts that a page asked for; such requests are stopped.
        errors: What the console reports, such as a violation of the content security policy.
    """

    page: Page
    uri: str
    elsewhere: list[str] = attrs.field(factory=list)
    errors: list[str] = attrs.field(factory=list)

    def visit(self, address: str) -> None:
        """Load a page, which must exist."""
        answer = self.page.goto(self.uri + address)
        assert answer is not None
        assert answer.ok, f"{address}: {answer.status}"

    def require_sound(self) -> None:
        """Fail if the page is inaccessible by axe-core, or wider than a window.

        In dark colours only the contrast can differ, and on a phone what depends on the layout.
        """
        for width, scheme, rules in _SIGHTS:
            self.page.set_viewport_size({"width": width, "height": 900})
            self.page.emulate_media(color_scheme=scheme)
            too_wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert too_wide <= 0, f"{self.page.url} is {too_wide} pixels wider than a window of {width}"
            found = _AXE.run(
                self.page, options={"resultTypes": ["violations"], **({"runOnly": [*rules]} if rules else {})}
            )
            assert found.violations_count == 0, f"{self.page.url}, {width}, {scheme}: {found.generate_report()}"

    def _on_request(self, route: Route) -> None:
        if route.request.url.startswith((self.uri, "data:")):
            route.continue_()
        else:
            self.elsewhere.append(route.request.url)
            route.abort()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_WITHOUT_TLS):
            self.errors.append(message.text)

    def listen(self) -> None:
        """Watch requests and the console."""
        self.page.context.route("**/*", self._on_request)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))


@contextmanager
def visiting(browser: Browser, uri: str, *, width: int = WIDE, **options: Any) -> Iterator[Visitor]:
    """Open a window; at its end, fail on requests to other hosts and on errors in the console.

    Args:
        browser: The browser.
        uri: The site.
        width: The width of the window.
        options: Other options of the context, such as ``java_script_enabled``.
    """
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    try:
        visitor = Visitor(context.new_page(), uri)
        visitor.listen()
        yield visitor
        assert visitor.elsewhere == []
        assert visitor.errors == []
    finally:
        context.close()
