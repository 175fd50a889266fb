"""The page of one call as somebody meets it who asks where the time went."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from chains.records.recorded import CALLER, REPLY, Row
from tests.browser.conftest import listen
from tests.browser.served import Viewer
from tests.chains.records import made, taped

pytestmark = pytest.mark.asyncio(loop_scope="module")
STATES = ["answered", "interrupted", "dropped"]


@pytest.fixture(scope="module", autouse=True)
def calls(viewer: Viewer) -> None:
    """One call whose fifth turn met a slow replica, nine others to compare it with, and a trace of another program."""
    for index in range(9):
        viewer.keep(made.phone_call(f"usual-{index}", 4, start=made.START - (index + 1) * 60_000 * made.MS))
    viewer.keep(made.phone_call("slow", 6, states=STATES, slow="LLM-1"))
    viewer.keep(made.phone_call("other", 2, start=made.START - made.MS))
    viewer.keep(made.foreign_trace(3, spans=14, failed=True))
    viewer.keep(made.phone_call("c1", 3, states=STATES, start=made.START - 7_200_000 * made.MS))
    taped.kept(viewer.traces, said())[0].close()
    viewer.keep(made.phone_call("long", 150, start=made.START - 3_600_000 * made.MS))


def said() -> Iterator[Row]:
    """The sound and the words of the call c1: its second turn's reply was cut off after 1.2 s."""
    yield taped.opened()
    yield from taped.spoken(50, taped.tone(550))
    yield taped.text(600, "when are you open", CALLER, 1, role="user")
    yield from taped.spoken(850, taped.tone(1500), side=REPLY, turn=1)
    yield taped.text(850, "from nine to five", REPLY, 1, role="assistant")
    yield taped.text(4200, "<i>and</i> on Sunday", CALLER, 2, role="user")
    yield taped.sound(4300, taped.tone(3000), side=REPLY, turn=2)
    yield taped.text(4300, "we are closed", REPLY, 2, role="assistant")
    yield taped.text(8900, "on all holidays", REPLY, 2, role="assistant")
    yield taped.event(5500, "clear", turn=2)
    yield taped.closed(9000)


async def opened(page: Page, address: str) -> None:
    await page.goto(address)
    await expect(page.locator(".c-row").first).to_be_visible()


async def selected(page: Page) -> str:
    return (await page.locator(".c-row.c-chosen .c-name").inner_text()).strip()


async def test_the_slowest_turn_is_chosen_and_its_path_sums_to_its_latency(page: Page) -> None:
    await opened(page, "/calls/slow")
    chosen = page.locator(".c-turn[aria-pressed='true']")
    await expect(chosen).to_contain_text("slowest")
    await expect(page.locator(".c-why")).to_contain_text("LLM.stream computing on LLM-1")
    await expect(page.locator(".c-sum")).to_contain_text("✓ the steps sum to")
    latency = await page.locator(".c-path-head .c-big").inner_text()
    assert latency.split()[0] == re.sub(r"\D.*", "", (await page.locator(".c-sum").inner_text()).split("sum to ")[1])


async def test_what_was_unusual_is_said_in_words(page: Page) -> None:
    await opened(page, "/calls/slow")
    await expect(page.locator(".c-findings")).to_contain_text("LLM.stream")


async def test_each_state_of_a_turn_is_a_word_not_only_a_colour(page: Page) -> None:
    await opened(page, "/calls/slow")
    for number, state in enumerate(STATES, 1):
        await expect(page.get_by_role("button", name=f"Turn {number}, {state}")).to_be_visible()


async def test_a_turn_is_zoomed_to_and_back_undoes_it(page: Page) -> None:
    await opened(page, "/calls/slow")
    await page.get_by_role("button", name="Turn 1, answered").click()
    await expect(page).to_have_url(re.compile("turn=1"))
    await expect(page.locator(".c-lens")).to_be_visible()
    await page.get_by_role("button", name="Turn 4, answered").click()
    await expect(page).to_have_url(re.compile("turn=4"))
    await page.go_back()
    await expect(page.locator(".c-turn[aria-pressed='true']")).to_have_attribute("aria-label", re.compile("Turn 1,"))
    await page.go_back()
    await expect(page.locator(".c-lens")).to_be_hidden()


async def test_keys_move_collapse_open_and_close(page: Page) -> None:
    await opened(page, "/calls/slow")
    grid = page.get_by_role("treegrid")
    await page.keyboard.press("ArrowDown")
    assert await selected(page) == "call"
    for _ in range(2):
        await page.keyboard.press("ArrowDown")
    assert await selected(page) == "turn 1"
    rows = int(await grid.get_attribute("aria-rowcount") or 0)
    await page.keyboard.press("ArrowLeft")
    chosen = page.locator(".c-row.c-chosen")
    await expect(chosen).to_have_attribute("aria-expanded", "false")
    assert int(await grid.get_attribute("aria-rowcount") or 0) < rows
    await page.keyboard.press("ArrowRight")
    await expect(chosen).to_have_attribute("aria-expanded", "true")
    await page.keyboard.press("ArrowRight")
    assert await selected(page) == "VAD.windows"
    await page.keyboard.press("Enter")
    await expect(page.locator(".c-inspector h2")).to_have_text("VAD.windows")
    await expect(page.locator("[aria-live='polite']").last).to_contain_text("VAD.windows on")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("tab", name="Transcript")).to_have_attribute("aria-selected", "true")
    assert await grid.get_attribute("aria-activedescendant") == await chosen.get_attribute("id")


async def test_a_filter_keeps_what_matches_and_its_callers(page: Page) -> None:
    await opened(page, "/calls/slow")
    await page.keyboard.press("/")
    await page.keyboard.type("tts >80ms turn:2")
    await expect(page).to_have_url(re.compile("turn%3A2"))
    names = await page.locator(".c-row:not([hidden]) .c-name").all_inner_texts()
    assert set(names) <= {"call", "turn 2", "TTS.speak"}
    await page.keyboard.press("Control+a")
    await page.keyboard.type("nothing-is-called-this")
    await expect(page.locator(".c-none")).to_contain_text("No span matches")
    await page.keyboard.press("Escape")
    await expect(page.locator(".c-none")).to_be_hidden()


async def test_the_critical_path_alone(page: Page) -> None:
    await opened(page, "/calls/slow")
    before = int(await page.get_by_role("treegrid").get_attribute("aria-rowcount") or 0)
    await page.keyboard.press("c")
    await expect(page.get_by_role("button", name=re.compile("Only what stood"))).to_have_attribute(
        "aria-pressed", "true"
    )
    after = int(await page.get_by_role("treegrid").get_attribute("aria-rowcount") or 0)
    assert 6 < after < before
    assert "path=1" in page.url


async def test_a_hop_tells_its_parts_its_sum_its_tokens_and_its_usual_time(page: Page) -> None:
    await opened(page, "/calls/slow")
    await page.locator(".c-why .c-linky").click()
    details = page.locator(".c-inspector")
    await expect(details.locator("h2")).to_have_text("LLM.stream")
    await expect(details).to_contain_text("✓ the parts sum to")
    await expect(details).to_contain_text("output tokens")
    await expect(details).to_contain_text("p95")
    await expect(details.get_by_role("link", name="LLM-1")).to_have_attribute("href", re.compile("replica=LLM-1"))


async def test_everything_chosen_is_in_the_address(page: Page) -> None:
    await opened(page, "/calls/slow")
    await page.get_by_role("button", name="Turn 5").click()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    name, where = await selected(page), await page.locator(".c-range").inner_text()
    await expect(page).to_have_url(re.compile("span="))
    await opened(page, page.url)
    assert await selected(page) == name
    assert await page.locator(".c-range").inner_text() == where
    await expect(page.locator(".c-inspector h2")).to_have_text(name)


async def test_zoom_by_keys_and_wheel_stays_inside_the_call(page: Page) -> None:
    await opened(page, "/calls/slow")
    for _ in range(3):
        await page.keyboard.press("+")
    await expect(page.locator(".c-lens")).to_be_visible()
    box = await page.locator(".c-bars").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    await page.keyboard.down("Control")
    for _ in range(12):
        await page.mouse.wheel(0, 120)
    await page.keyboard.up("Control")
    await expect(page.locator(".c-lens")).to_be_hidden()


async def test_without_a_recording_it_says_how_to_make_one(page: Page) -> None:
    await opened(page, "/calls/slow")
    await expect(page.locator(".c-audio")).to_contain_text("--record")
    await expect(page.locator(".c-play")).to_be_hidden()


async def test_both_sides_lie_on_the_axis_and_a_click_moves_the_play_head(page: Page) -> None:
    await opened(page, "/calls/c1")
    await expect(page.get_by_role("img", name=re.compile("Loudness"))).to_have_count(2)
    await expect(page.locator(".c-head-line")).to_be_hidden()
    lane = page.get_by_role("img", name="Loudness of the reply's side")
    box = await lane.bounding_box()
    assert box is not None
    await lane.click(position={"x": box["width"] / 2, "y": 10})
    await expect(page.locator(".c-head-line")).to_be_visible()
    clock = await page.locator(".c-clock").inner_text()
    whole = await page.locator(".c-range").inner_text()
    minutes, seconds = clock.split(":")
    assert abs(int(minutes) * 60 + float(seconds) - float(whole.split()[0]) / 2) < 0.2


async def test_the_transcript_says_what_was_not_heard_and_leads_to_the_moment(page: Page) -> None:
    await opened(page, "/calls/c1")
    lines = page.locator(".c-entry")
    await expect(lines).to_have_count(5)
    await expect(lines.nth(2).locator(".c-words")).to_have_text("<i>and</i> on Sunday")
    await expect(lines.nth(4)).to_contain_text("not heard: the caller interrupted")
    await lines.nth(1).locator("button").first.click()
    await expect(lines.nth(1)).to_have_attribute("aria-current", "true")
    await expect(page.locator(".c-clock")).to_have_text(re.compile(r"0:00\.[89]"))


async def test_the_sound_is_played_by_the_space_bar(page: Page) -> None:
    await opened(page, "/calls/c1")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()
    await expect(page.locator(".c-clock")).not_to_have_text("0:00.0")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()


async def test_a_call_is_deleted_only_after_a_question(page: Page, viewer: Viewer) -> None:
    viewer.keep(made.phone_call("unwanted", 1, start=made.START - 5 * made.MS))
    await opened(page, "/calls/unwanted")
    await page.get_by_role("button", name="Delete…").click()
    await page.get_by_role("button", name="Keep it").click()
    await page.get_by_role("button", name="Delete…").click()
    await page.get_by_role("button", name="All of the call").click()
    await page.wait_for_url("**/")
    response = await page.request.get("/api/calls/unwanted")
    assert response.status == 404


async def test_a_trace_of_another_program_has_a_path_and_no_turns(page: Page, viewer: Viewer) -> None:
    await page.goto("/?state=failed")
    await page.locator(".rows .call a").first.click()
    await expect(page.locator(".c-path-head h2")).to_contain_text("Critical path")
    await expect(page.locator(".c-turns")).to_be_hidden()
    await expect(page.locator(".c-audio")).to_be_hidden()


async def test_what_a_span_is_called_never_becomes_markup(page: Page, viewer: Viewer) -> None:
    spans = made.phone_call("evil", 1, start=made.START - 2 * made.MS)
    for span in spans:
        if span.name == "TTS.speak":
            span.name = "<img src=x onerror=alert(1)>"
            span.attributes["chains.node"] = "<b>bold</b>"
    viewer.keep(spans)
    await opened(page, "/calls/evil")
    await expect(page.locator(".c-name", has_text="<img src=x").first).to_be_visible()
    assert await page.locator("main img, main b b").count() == 0


async def test_a_running_call_grows_and_follows_until_the_reader_moves(page: Page, viewer: Viewer) -> None:
    spans = made.phone_call("running", 3, start=made.START + 3_600_000 * made.MS)
    first = spans[:14]
    viewer.keep(first)
    await opened(page, "/calls/running")
    await expect(page.locator(".c-facts")).to_contain_text("running")
    rows = int(await page.get_by_role("treegrid").get_attribute("aria-rowcount") or 0)
    await page.keyboard.press("ArrowDown")
    chosen = await selected(page)
    viewer.keep(spans[14:])
    await expect(page.locator(".c-facts")).to_contain_text("done")
    assert int(await page.get_by_role("treegrid").get_attribute("aria-rowcount") or 0) > rows
    assert await selected(page) in (chosen, "call")
    await expect(page.locator(".c-turn")).to_have_count(3)


async def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser, viewer: Viewer) -> None:
    context = await browser.new_context(base_url=viewer.url, viewport={"width": 390, "height": 844}, has_touch=True)
    phone = await context.new_page()
    await opened(phone, "/calls/slow")
    assert await phone.evaluate("document.querySelector('main').scrollWidth") <= 390
    await phone.locator(".c-row .c-name", has_text="STT.transcribe").first.click()
    await expect(phone.locator(".c-inspector h2")).to_be_in_viewport()
    await context.close()


async def test_the_saved_file_shows_the_same_without_a_server(browser: Browser, viewer: Viewer, tmp_path: Path) -> None:
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    online = await context.new_page()
    await opened(online, f"{viewer.url}/calls/c1")
    async with online.expect_download() as download:
        await online.get_by_role("link", name="HTML").click()
    file = tmp_path / "call.html"
    await (await download.value).save_as(file)
    saved = await context.new_page()
    complaints = listen(saved)
    await opened(saved, file.as_uri())
    await expect(saved.locator(".c-sum")).to_contain_text("✓ the steps sum to")
    await saved.keyboard.press("/")
    await saved.keyboard.type("llm.stream")
    await saved.locator(".c-row .c-name", has_text="LLM.stream").first.click()
    await expect(saved.locator(".c-inspector")).to_contain_text("output tokens")
    await expect(saved.get_by_role("img", name=re.compile("Loudness"))).to_have_count(2)
    await saved.keyboard.press("Escape")
    await saved.keyboard.press("Space")
    await expect(saved.get_by_role("button", name="Pause")).to_be_visible()
    assert not complaints
    await context.close()
