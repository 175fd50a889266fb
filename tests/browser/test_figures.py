"""Figures in words, and the graph's layers: the page's own functions, called in the page."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def call(page: Page, module: str, function: str, *given: Any) -> Any:
    """What a function of one of the page's modules gives."""
    if not page.url.startswith("http"):
        await page.goto("/info")
    code = "([module, name, given]) => import(`/ui/${module}.js`).then((found) => found[name](...given))"
    return await page.evaluate(code, [module, function, list(given)])


async def test_times_have_a_unit_and_few_digits(page: Page) -> None:
    shown = [
        await call(page, "format", "ms", ms)
        for ms in (0, 0.42, 4.24, 99.96, 999.4, 1000, 12_340, 64_000, 7_380_000, None)
    ]
    assert shown == [
        "0 ms",
        "0.42 ms",
        "4.2 ms",
        "100 ms",
        "999 ms",
        "1.00 s",
        "12.3 s",
        "1m 04s",
        "2h 03m",
        "\N{EN DASH}",
    ]


async def test_differences_always_show_their_sign(page: Page) -> None:
    assert [await call(page, "format", "delta", ms) for ms in (81, -4.2, 0.01, None)] == [
        "+81 ms",
        "\N{MINUS SIGN}4.2 ms",
        "±0 ms",
        "\N{EN DASH}",
    ]


async def test_sides_are_written_as_they_are_read(page: Page) -> None:
    for spec in ("version:5eaf00d5;chain=PhoneCall", "range:-2h..-1h;chain=PhoneCall", "call:call-1"):
        assert await call(page, "specs", "writeSpec", await call(page, "specs", "readSpec", spec)) == spec


async def test_layers_hold_callers_before_callees_also_in_a_circle(page: Page) -> None:
    nodes = ["A", "B", "C", "D"]
    edges = [["A", "B"], ["A", "C"], ["B", "C"], ["C", "D"], ["D", "B"]]
    assert await call(page, "graph", "layersOf", nodes, edges) == [["A"], ["B"], ["C"], ["D"]]
    assert await call(page, "graph", "layersOf", ["X", "Y"], [["X", "Y"], ["Y", "X"]]) == [["X"], ["Y"]]
