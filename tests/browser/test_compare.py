"""Two versions, or two calls, side by side."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.served import Viewer
from tests.chains.records import made

pytestmark = pytest.mark.asyncio(loop_scope="module")
CALLS = 16  # of each version


@pytest.fixture(scope="module", autouse=True)
def calls(viewer: Viewer) -> None:
    """Two versions of a chain: in the second the only replica of the model computes 120 ms longer."""
    for version, first, slow in (("0badf00d", 0, ""), ("5eaf00d5", CALLS, "LLM-0")):
        spans: list[made.Span] = []
        for index in range(first, first + CALLS):
            start = made.START + index * 60_000 * made.MS
            spans += made.phone_call(f"call-{index}", 4, start=start, slow=slow, slow_ms=120.0, replicas=1)
        viewer.keep(spans, version)


async def test_the_two_newest_versions_are_compared_unasked_and_the_regression_shows(page: Page) -> None:
    await page.goto("/compare")
    await expect(page.locator(".verdict")).to_contain_text("B is slower")
    assert "a=version%3A0badf00d" in page.url and "b=version%3A5eaf00d5" in page.url
    first = page.locator(".finding").first
    await expect(first).to_contain_text("LLM.stream")
    row = page.locator(".hops tbody tr", has_text="LLM.stream")
    await expect(row).to_contain_text("slower")
    await expect(row.locator(".more-time i").first).to_be_attached()
    await expect(row.locator(".partdeltas")).to_contain_text("compute +")
    await expect(page.locator(".hops tbody tr", has_text="STT.transcribe")).to_contain_text("same")


async def test_swapped_it_is_faster(page: Page) -> None:
    await page.goto("/compare?a=version:0badf00d&b=version:5eaf00d5")
    await page.get_by_role("button", name="Swap A and B").click()
    await expect(page.locator(".verdict")).to_contain_text("B is faster")
    await page.go_back()
    await expect(page.locator(".verdict")).to_contain_text("B is slower")


async def test_two_calls_stand_one_above_the_other_on_one_scale(page: Page) -> None:
    await page.goto("/compare?a=version:0badf00d&b=version:5eaf00d5")
    for side, call in (("A, before", "call-3"), ("B, after", "call-27")):
        group = page.get_by_role("group", name=side)
        await group.get_by_label("By").select_option("call")
        await group.get_by_placeholder("id of a call").fill(call)
        await group.get_by_placeholder("id of a call").press("Enter")
        await page.wait_for_url(f"**{call}*")
    await expect(page.locator(".one-call")).to_have_count(2)
    boxes = [await page.locator(".one-call").nth(index).bounding_box() for index in range(2)]
    assert boxes[0] and boxes[1] and boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    assert boxes[0]["width"] == boxes[1]["width"]
    await expect(page.locator(".verdict")).to_contain_text("too few to be sure")


async def test_a_call_that_is_not_there_is_said_with_a_retry(browser: Browser, viewer: Viewer) -> None:
    context = await browser.new_context(base_url=viewer.url)
    page = await context.new_page()  # its console may complain: the answer is an error
    await page.goto("/compare?a=call:nobody&b=call:call-3")
    alert = page.get_by_role("alert")
    await expect(alert).to_contain_text("nobody")
    await expect(alert.get_by_role("button", name="Try again")).to_be_visible()
    await context.close()


async def test_a_side_without_calls_is_no_good_news(page: Page) -> None:
    await page.goto("/compare?a=version:0badf00d&b=range:-2m..-1m;chain=PhoneCall")
    await expect(page.locator(".verdict")).to_have_text("? B has no calls: there is nothing to compare.")
    await expect(page.locator(".finding")).to_contain_text("has no calls")
    await expect(page.locator(".finding a")).to_have_count(0)
    await expect(page.locator(".calm")).to_have_count(0)
