"""A browser, a viewer with a store to fill, and a page that fails its test on whatever its console complains about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from tests.browser.fetch import browser as browser_path
from tests.browser.served import Viewer
from tests.browser.served import viewer as served

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE = {"width": 1280, "height": 800}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all tests of a module."""
    path = browser_path()
    if path is None:
        pytest.skip("no chromium here: make test-browser brings it where apt is at hand")
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield found
        await found.close()


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """A viewer on a real socket over an empty store; a module's own fixture fills it."""
    folder: Path = tmp_path_factory.mktemp("viewer")
    with served(folder / "traces.sqlite") as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, viewer: Viewer) -> AsyncIterator[Page]:
    """A fresh page whose addresses begin at the viewer; an error in its console or a breach of its policy fails the
    test.
    """
    context = await browser.new_context(base_url=viewer.url, viewport=WIDE, color_scheme="light")
    context.set_default_timeout(10_000)
    found = await context.new_page()
    complaints = listen(found)
    yield found
    await context.close()
    assert not complaints


def listen(page: Page) -> list[str]:
    """What the page complains about from now on: errors thrown, and errors and warnings in its console."""
    complaints: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"{message.type}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(f"thrown: {error}"))
    return complaints
