"""Every view can be read: in light and dark, at a phone's width, by those who see fewer colours, by keys alone."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.conftest import listen
from tests.browser.served import Viewer
from tests.chains.records import made

pytestmark = pytest.mark.asyncio(loop_scope="module")
VIEWS = ("/", "/?state=failed", "/chain", "/compare", "/info", "/calls/call-3")
THEMES = ("light", "dark")
PARTS = ("serialise", "wire", "queue", "compute", "wait")
CONTRASTS = Path(__file__).with_name("contrasts.js").read_text()
BEYOND = Path(__file__).with_name("beyond.js").read_text()


@pytest.fixture(scope="module", autouse=True)
def calls(viewer: Viewer) -> None:
    """Two versions of a chain, the second with a slow replica; some calls failed."""
    for version, first, slow in (("0badf00d", 0, ""), ("5eaf00d5", 10, "TTS-1")):
        spans: list[made.Span] = []
        for index in range(first, first + 10):
            start = made.START + index * 60_000 * made.MS
            outcome = "error" if index % 9 == 0 else "done"
            spans += made.phone_call(f"call-{index}", 4, start=start, slow=slow, replicas=3, outcome=outcome)
        viewer.keep(spans, version)


async def settled(page: Page) -> None:
    """Until nothing is being fetched for a moment and no place says that it waits."""
    await expect(page.locator(".loading, [aria-busy='true']")).to_have_count(0)
    await expect(page.locator("main .frame > *")).not_to_have_count(0)


@pytest.mark.parametrize("theme", THEMES)
async def test_texts_stand_out(browser: Browser, viewer: Viewer, theme: str) -> None:
    """At least 4.5 to 1 (3 to 1 where large), in every view."""
    context = await browser.new_context(base_url=viewer.url, color_scheme="dark" if theme == "dark" else "light")
    page = await context.new_page()
    complaints = listen(page)
    bad = {}
    for view in VIEWS:
        await page.goto(view)
        await settled(page)
        if found := await page.evaluate(CONTRASTS):
            bad[view] = found
    await context.close()
    assert not bad and not complaints


async def test_nothing_reaches_beyond_a_phone(browser: Browser, viewer: Viewer) -> None:
    context = await browser.new_context(base_url=viewer.url, viewport={"width": 390, "height": 844})
    page = await context.new_page()
    beyond = {}
    for view in VIEWS:
        await page.goto(view)
        await settled(page)
        if found := await page.evaluate(BEYOND):
            beyond[view] = found[:8]
    await context.close()
    assert not beyond


@pytest.mark.parametrize("theme", THEMES)
async def test_parts_are_told_apart_with_fewer_colours(browser: Browser, viewer: Viewer, theme: str) -> None:
    """Each two of the five parts differ for full sight and for the three kinds of colour blindness; wait is hatched."""
    context = await browser.new_context(base_url=viewer.url, color_scheme="dark" if theme == "dark" else "light")
    page = await context.new_page()
    await page.goto("/chain")
    await settled(page)
    read = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"
    colours = {part: _rgb(await page.evaluate(read, f"--part-{part}")) for part in PARTS}
    surface = _rgb(await page.evaluate(read, "--surface-1"))
    hatched = await page.locator(".legend .part-wait").evaluate("one => getComputedStyle(one).backgroundImage")
    await context.close()
    apart = {
        (sight, a, b): _difference(_seen(colours[a], sight), _seen(colours[b], sight))
        for sight in SIGHTS
        for a, b in itertools.combinations(PARTS, 2)
    }
    print(f"{theme}: nearest pair {min(apart, key=lambda one: apart[one])} {min(apart.values()):.1f}")
    assert min(apart.values()) > 8  # in OKLab x 100; neighbours in a gradient begin to differ at about 2
    assert "gradient" in hatched
    assert min(_contrast(colour, surface) for colour in colours.values()) >= 3


async def test_the_keys_reach_everything(page: Page) -> None:
    await page.goto("/")
    await settled(page)
    await page.keyboard.press("Tab")
    await expect(page.locator(":focus")).to_have_text("Skip to the content")
    await page.keyboard.press("g")
    await page.keyboard.press("h")
    await expect(page.get_by_role("heading", name="PhoneCall")).to_be_visible()
    await settled(page)
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await page.locator(".graph .node:focus").count():
            break
    await expect(page.locator(".graph .node:focus")).to_have_count(1)
    await page.keyboard.press("Enter")
    await expect(page.locator(".hops :focus")).to_have_count(1)
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.keyboard.press("t")
    await expect(page.locator("html")).to_have_attribute("data-theme", "light")
    await page.keyboard.press("t")
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.keyboard.press("g")
    await page.keyboard.press("d")
    await expect(page.get_by_role("heading", name="Compare")).to_be_visible()


async def test_focus_is_seen(page: Page) -> None:
    """Each stop of the Tab key in the shell and the list has an outline, or its row a mark."""
    await page.goto("/")
    await settled(page)
    for _ in range(24):
        await page.keyboard.press("Tab")
        style = await page.locator(":focus").evaluate("one => getComputedStyle(one).outlineStyle")
        assert style != "none", await page.locator(":focus").evaluate("one => one.outerHTML.slice(0, 120)")


SIGHTS: dict[str, list[list[float]]] = {
    "full": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    # Machado, Oliveira and Fernandes 2009, at full strength.
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def _rgb(text: str) -> list[float]:
    """Linear red, green and blue of "rgb(1, 2, 3)"."""
    levels = [float(level) / 255 for level in text.strip().removeprefix("rgb(").removesuffix(")").split(",")]
    return [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]


def _seen(colour: list[float], sight: str) -> list[float]:
    rows = SIGHTS[sight]
    return [min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True)))) for row in rows]


def _contrast(a: list[float], b: list[float]) -> float:
    low, high = sorted(0.2126 * one[0] + 0.7152 * one[1] + 0.0722 * one[2] for one in (a, b))
    return (high + 0.05) / (low + 0.05)


def _difference(a: list[float], b: list[float]) -> float:
    return 100 * math.dist(_oklab(a), _oklab(b))


def _oklab(colour: list[float]) -> list[float]:
    to_lms = [
        [0.41222147, 0.53633254, 0.05144599],
        [0.2119035, 0.68069955, 0.10739696],
        [0.08830246, 0.28171884, 0.6299787],
    ]
    to_lab = [
        [0.21045426, 0.79361779, -0.00407205],
        [1.9779985, -2.42859221, 0.45059371],
        [0.02590404, 0.78277177, -0.80867577],
    ]
    lms = [sum(a * b for a, b in zip(row, colour, strict=True)) ** (1 / 3) for row in to_lms]
    return [sum(a * b for a, b in zip(row, lms, strict=True)) for row in to_lab]
