"""The list of calls as somebody at the page meets it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from playwright.async_api import Page, expect

from tests.browser.served import Viewer
from tests.chains.records import made

pytestmark = pytest.mark.asyncio(loop_scope="module")
APART = 60_000 * made.MS


@pytest.fixture(scope="module", autouse=True)
def calls(viewer: Viewer) -> None:
    """60 calls a minute apart: each fifth failed, some interrupted, one of another version."""
    spans: list[made.Span] = []
    for index in range(60):
        outcome = "error" if index % 5 == 0 else "done"
        states = ["interrupted"] if index % 7 == 0 else []
        spans += made.phone_call(
            f"call-{index:02}", 3, start=made.START + index * APART, states=states, outcome=outcome
        )
    viewer.keep(spans)
    viewer.keep(made.phone_call("other-version", 2, start=made.START - APART), "5eaf00d5")


@pytest.fixture
def now_ns() -> Iterator[int]:
    yield time.time_ns()


async def ids(page: Page) -> list[str]:
    return await page.locator(".rows .call .c1 a").evaluate_all("links => links.map((one) => one.title)")


async def test_the_newest_call_is_on_top_and_opens_by_a_click(page: Page) -> None:
    await page.goto("/")
    first = page.locator(".rows .call").first
    await expect(page.locator(".total")).to_have_text("61 calls")
    await expect(page.locator(".call[data-index='0'] .c1 a")).to_have_attribute("title", "call-59")
    await expect(first).to_contain_text("PhoneCall")
    await page.locator(".call[data-index='0'] .c2").click()
    await page.wait_for_url("**/calls/call-59")


async def test_filters_survive_a_reload_and_back(page: Page) -> None:
    await page.goto("/")
    await page.get_by_role("button", name="Failed").click()
    await expect(page.locator(".total")).to_have_text("12 calls")
    assert "state=failed" in page.url
    await page.reload()
    await expect(page.get_by_role("button", name="Failed")).to_have_attribute("aria-pressed", "true")
    await expect(page.locator(".total")).to_have_text("12 calls")
    await page.get_by_role("searchbox").fill("call-05")
    await expect(page.locator(".total")).to_have_text("1 call")
    await page.go_back()
    await expect(page.locator(".total")).to_have_text("12 calls")
    await page.go_back()
    await expect(page.locator(".total")).to_have_text("61 calls")
    await expect(page.get_by_role("searchbox")).to_have_value("")


async def test_a_version_is_chosen_and_taken_back_by_its_chip(page: Page) -> None:
    await page.goto("/")
    await page.get_by_role("button", name="Filters").click()
    await page.get_by_label("Version").select_option("5eaf00d5")
    await expect(page.locator(".total")).to_have_text("1 call")
    await page.get_by_role("button", name="Remove the filter version 5eaf00d5").click()
    await expect(page.locator(".total")).to_have_text("61 calls")


async def test_nothing_found_offers_the_way_back(page: Page) -> None:
    await page.goto("/?q=nobody-said-this")
    await expect(page.get_by_role("heading", name="No call matches these filters")).to_be_visible()
    await page.get_by_role("button", name="Clear all filters").click()
    await expect(page.locator(".total")).to_have_text("61 calls")


async def test_the_strip_brushes_a_range_of_time(page: Page) -> None:
    await page.goto("/")
    await expect(page.locator(".strip svg")).to_be_visible()
    box = await page.locator(".strip").bounding_box()  # it stays, what is drawn in it is drawn again
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 30, steps=4)
    await page.mouse.up()
    await expect(page.locator(".total")).not_to_have_text("61 calls")
    assert "from=" in page.url and "to=" in page.url
    brushed = await ids(page)
    assert "call-40" in brushed and "call-59" not in brushed and "call-05" not in brushed
    await page.locator(".strip").focus()
    await page.keyboard.press("Escape")
    await expect(page.locator(".total")).to_have_text("61 calls")


async def test_j_k_enter_and_slash_walk_the_list(page: Page) -> None:
    await page.goto("/")
    await expect(page.locator(".total")).to_have_text("61 calls")
    for _ in range(3):
        await page.keyboard.press("j")
    await page.keyboard.press("k")
    await expect(page.locator(":focus")).to_have_attribute("title", "call-58")
    await page.keyboard.press("End")
    await expect(page.locator(":focus")).to_have_attribute("title", "other-version")
    await page.keyboard.press("/")
    await page.keyboard.type("call-30")
    await expect(page.locator(".total")).to_have_text("1 call")
    await page.keyboard.press("Escape")
    await expect(page.locator(":focus")).to_have_attribute("title", "call-30")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/calls/call-30")


async def test_back_from_a_call_finds_the_list_as_it_was_left(page: Page) -> None:
    await page.goto("/")
    await expect(page.locator(".total")).to_have_text("61 calls")
    await page.locator(".scroller").evaluate("one => { one.scrollTop = 700 }")
    await page.locator(".rows a", has_text="call-30").click()
    await page.wait_for_url("**/calls/call-30")
    await page.go_back()
    await expect(page.locator(":focus")).to_have_attribute("title", "call-30")
    assert await page.locator(".scroller").evaluate("one => one.scrollTop") == 700


async def test_a_call_shows_while_it_runs_and_turns_done_in_place(page: Page, viewer: Viewer, now_ns: int) -> None:
    await page.goto("/")
    await expect(page.locator(".total")).to_have_text("61 calls")
    await expect(page.locator("#stream")).to_have_text("Live")
    spans = made.phone_call("running", 2, start=now_ns)
    viewer.keep(spans[:8])
    row = page.locator(".call[data-index='0']")
    await expect(row).to_contain_text("running")
    await expect(row.locator(".c9")).to_contain_text("live")
    viewer.keep(spans[8:])
    await expect(row.locator(".c9")).to_contain_text("done")


async def test_a_new_call_does_not_move_what_somebody_reads(page: Page, viewer: Viewer, now_ns: int) -> None:
    await page.goto("/")
    await expect(page.locator("#stream")).to_have_text("Live")
    await page.locator(".scroller").evaluate("one => { one.scrollTop = 500 }")
    at = page.locator(".rows .call", has_text="call-40")
    await expect(at).to_be_visible()
    before = await at.bounding_box()
    viewer.keep(made.phone_call("while-reading", 1, start=now_ns))
    pill = page.get_by_role("button", name="1 new")
    await expect(pill).to_be_visible()
    assert await at.bounding_box() == before
    await pill.click()
    await expect(page.locator(".call[data-index='0']")).to_contain_text("while-readi")
    await expect(pill).to_be_hidden()
