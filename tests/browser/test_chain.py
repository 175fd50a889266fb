"""The chain's view answers an operator: which hop, and is it that replica, that model, the queue or the client?"""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from playwright.async_api import Page, Route, expect

from tests.browser.served import Viewer
from tests.chains.records import made

pytestmark = pytest.mark.asyncio(loop_scope="module")
SLOW, SLOW_MS = "TTS-1", 80.0
CALLS = 16  # of each version


@pytest.fixture(scope="module", autouse=True)
def calls(viewer: Viewer) -> None:
    """A sound version, and one in which a replica of TTS computes 80 ms longer."""
    for version, first, slow in (("0badf00d", 0, ""), ("5eaf00d5", CALLS, SLOW)):
        spans: list[made.Span] = []
        for index in range(first, first + CALLS):
            start = made.START + index * 60_000 * made.MS
            spans += made.phone_call(f"call-{index}", 4, start=start, slow=slow, slow_ms=SLOW_MS, replicas=3)
        viewer.keep(spans, version)
    queued = [span for index in range(CALLS) for span in in_a_long_queue(made.phone_call(f"queued-{index}", 4))]
    viewer.keep(queued, "10111111")
    read = [span for index in range(CALLS) for span in read_slowly(made.phone_call(f"read-{index}", 4))]
    viewer.keep(read, "51000000")


def in_a_long_queue(spans: list[made.Span], ms: float = 150.0) -> list[made.Span]:
    """Each call of the model waits that much longer for a free place."""
    for span in spans:
        if span.name == "LLM.stream":
            for name in ("chains.queue_ms", "chains.accepted_ms", "chains.ended_ms"):
                span.attributes[name] = round(span.attributes.get(name, 0.0) + ms, 3)
            span.end += round(ms * made.MS)
    return spans


def read_slowly(spans: list[made.Span]) -> list[made.Span]:
    """The entry waits for its reader where it waited for its input."""
    for span in spans:
        if span.name == "PhoneCall.run":
            waits = json.loads(span.attributes["chains.waits"])
            span.attributes["chains.waits"] = json.dumps([[at, ms, "credit", *rest] for at, ms, _, *rest in waits])
    return spans


async def test_the_slow_replica_is_named_first_in_words(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall&version=5eaf00d5")
    first = page.locator(".finding").first
    await expect(first).to_contain_text("one replica")
    await expect(first).to_contain_text(SLOW)
    await expect(first).to_contain_text("TTS.speak")
    said = await first.locator("b.figure").inner_text()
    assert abs(float(said.removeprefix("+").removesuffix(" ms")) - SLOW_MS) < 15, said


async def test_the_list_says_it_first_and_leads_to_the_rest(page: Page) -> None:
    await page.goto("/?version=5eaf00d5")
    notice = page.locator(".notice")
    await expect(notice).to_contain_text("one replica")
    await expect(notice).to_contain_text(SLOW)
    await notice.get_by_role("link").click()
    await page.wait_for_url("**/chain?chain=PhoneCall&version=5eaf00d5**")
    await expect(page.locator(".finding").first).to_contain_text(SLOW)


async def test_the_list_says_nothing_of_a_sound_version(page: Page) -> None:
    async with page.expect_response("**/api/chain?**") as answer:
        await page.goto("/?version=0badf00d")
    assert (await (await answer.value).json())["findings"] == []
    await expect(page.locator(".notice")).to_be_hidden()


async def test_the_list_says_it_also_when_the_names_of_chains_come_late(page: Page) -> None:
    drawn = asyncio.Event()

    async def late(route: Route) -> None:
        await drawn.wait()
        await route.continue_()

    await page.route("**/api/info**", late)
    await page.goto("/?version=5eaf00d5")
    await expect(page.locator(".strip svg")).to_be_visible()
    drawn.set()
    await expect(page.locator(".notice")).to_contain_text(SLOW)


async def test_what_is_said_is_that_of_the_filters_chosen_last(page: Page) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        asked.set()
        await answer.wait()
        await route.continue_()

    await page.route("**/api/chain?*version=5eaf00d5*", late)
    await page.goto("/?version=5eaf00d5")
    await asked.wait()
    async with page.expect_event("requestfailed", lambda request: "version=5eaf00d5" in request.url):
        await page.get_by_role("button", name="Remove the filter version 5eaf00d5").click()
    answer.set()
    await page.get_by_role("button", name="Filters").click()
    await page.get_by_label("Version").select_option("10111111")
    await expect(page.locator(".notice")).to_contain_text("The queue of LLM.stream")


async def test_the_slow_replica_is_marked_in_the_graph_and_among_its_peers(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall&version=5eaf00d5")
    marked = page.locator(".graph .node.marked")
    await expect(marked).to_have_count(1)
    await expect(marked).to_contain_text(SLOW)
    odd = page.locator(".hops .outlier")
    await expect(odd).to_have_count(1)
    await expect(odd).to_contain_text("▲")
    await expect(odd).to_contain_text(SLOW)
    await expect(odd).to_contain_text("Unlike its peers: compute +")


async def test_the_slowest_calls_of_the_replica_are_one_click_away(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall&version=5eaf00d5")
    await page.get_by_role("link", name=f"slowest calls through {SLOW}").click()
    await expect(page.locator(".total")).to_contain_text("slowest first")
    await expect(page.get_by_role("button", name=f"Remove the filter replica {SLOW}")).to_be_visible()
    await expect(page.locator(".rows .call").first).to_be_visible()
    await page.go_back()
    await expect(page.locator(".finding").first).to_contain_text(SLOW)


async def test_a_queue_that_is_too_long_is_named_as_such(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall&version=10111111")
    first = page.locator(".finding").first
    await expect(first).to_contain_text("queue")
    await expect(first).to_contain_text("LLM.stream")
    await expect(page.locator(".finding.kind-replica")).to_have_count(0)
    await expect(page.locator(".graph .node.marked")).to_contain_text("queue")


async def test_a_slow_client_is_not_blamed_on_the_chain(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall&version=51000000")
    first = page.locator(".finding").first
    await expect(first).to_contain_text("client")
    await expect(first).to_contain_text("The chain is not at fault")
    await expect(page.locator(".finding")).to_have_count(1)


async def test_a_sound_version_has_no_replica_to_blame(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall")
    await page.get_by_label("Version").select_option("0badf00d")
    await page.wait_for_url("**version=0badf00d*")
    await expect(page.locator(".graph .node")).not_to_have_count(0)
    await expect(page.locator(".finding.kind-replica")).to_have_count(0)
    await expect(page.locator(".hops .outlier")).to_have_count(0)
    await expect(page.locator(".calm")).to_be_visible()


async def test_callers_stand_left_of_what_they_call(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall")
    await expect(page.locator(".graph .node")).not_to_have_count(0)
    caller = await page.locator(".graph .node", has_text="PhoneCall").bounding_box()
    callee = await page.locator(".graph .node", has_text="TTS").bounding_box()
    assert caller is not None and callee is not None
    assert caller["x"] + caller["width"] < callee["x"]


async def test_a_time_without_calls_says_so(page: Page) -> None:
    await page.goto("/chain?chain=PhoneCall&from=1000&to=2000")
    await expect(page.get_by_role("heading", name="Nothing was called in this time")).to_be_visible()
    await page.get_by_role("button", name="Look at all versions and the whole time").click()
    await expect(page.locator(".hops tbody")).not_to_have_count(0)


async def test_the_last_hour_is_shown_unasked_and_the_whole_time_on_demand(page: Page, viewer: Viewer) -> None:
    viewer.keep(made.phone_call("just-now", 2, start=time.time_ns() - 60 * 10**9), "2ece4715")
    await page.goto("/chain?chain=PhoneCall")
    run = page.locator(".hops tbody", has_text="PhoneCall.run")
    await expect(page.get_by_label("Time", exact=True)).to_have_value("-1h")
    await expect(run.locator("td[data-label='Calls']").first).to_have_text("1")
    await page.get_by_label("Time", exact=True).select_option("")
    await page.wait_for_url("**from=*")
    await expect(run.locator("td[data-label='Calls']").first).to_have_text(str(4 * CALLS + 1))
    await page.reload()
    await expect(run.locator("td[data-label='Calls']").first).to_have_text(str(4 * CALLS + 1))


async def test_new_calls_are_offered_not_forced(page: Page, viewer: Viewer) -> None:
    await page.goto("/chain?chain=PhoneCall&version=0badf00d")
    await expect(page.locator("#stream")).to_have_text("Live")
    await expect(page.locator(".graph .node")).not_to_have_count(0)
    viewer.keep(made.phone_call("newer", 2, start=time.time_ns()))
    again = page.get_by_role("button", name="1 new call")
    await again.click()
    await expect(again).to_be_hidden()
    await expect(page.locator(".hops tbody", has_text="PhoneCall.run")).to_contain_text(str(CALLS + 1))


async def test_of_few_calls_nothing_is_said_and_that_is_said(page: Page, viewer: Viewer) -> None:
    spans = made.phone_call("alone", 1)
    viewer.keep([span for span in spans if span.attributes["chains.kind"] != "turn"], "0000a10e")
    await page.goto("/chain?chain=PhoneCall&version=0000a10e")
    await expect(page.get_by_role("region", name="Findings")).to_contain_text("too few to judge")
    await expect(page.locator(".calm")).to_have_count(0)


async def test_no_name_runs_over_its_box(page: Page, viewer: Viewer) -> None:
    long = "W" * 60
    spans = made.phone_call("long", 1)
    for span in spans:
        span.name = span.name.replace("LLM.", f"{long}.").replace("STT.", "東京" * 20 + ".")
        if "chains.node" in span.attributes:
            span.attributes["chains.node"] = span.name.partition(".")[0]
    viewer.keep(spans, "10000000")
    await page.goto("/chain?chain=PhoneCall&version=10000000")
    await page.locator(".graph .node").first.wait_for()
    over = await page.evaluate(
        """() => [...document.querySelectorAll(".graph .node")].filter((node) => {
          const room = node.querySelector(".box").width.baseVal.value;
          const clip = node.querySelector(".name").ownerSVGElement;
          return clip.width.baseVal.value > room || getComputedStyle(clip).overflow !== "hidden";
        }).length"""
    )
    assert over == 0
    width = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0
    table = page.locator("table.hops")
    inside = await table.evaluate("(one) => one.scrollWidth <= one.parentElement.clientWidth + 1")
    assert inside, "the table is cut"
