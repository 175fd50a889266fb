"""How soon the tracing page stands in Chromium: 10,000 calls, one call of 2,000 spans, one of 100,000.

Each opening is a fresh context of the browser, so nothing is cached; then the same address again, with what the first
left. The clock is the page's own: from the start of navigation until the rows fill the window, two frames later. The
pages of other tools are measured in the same rounds where they are at hand; their servers are not (peers/trace_pages).
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from playwright.async_api import Browser, CDPSession, Page, ViewportSize, async_playwright

from benchmarks.peers.trace_pages import PEERS, Sight, Summary, served
from benchmarks.report import Options, Row, arguments, compare, interleave_async, progress, report
from tests.browser.conftest import FLAGS, WIDE
from tests.browser.fetch import browser as browser_path
from tests.browser.served import Viewer, viewer
from tests.chains.records import made

CALLS, SPANS, HUGE = 10_000, 2_000, 100_000
LIST_MS, CALL_MS = 1_000.0, 500.0
FRAMES = 120
LAST_S = 120.0
SPANS_OF_A_TURN = 14

LIST = Sight("/", ".scroller", ".rows .call[data-index]")
CALL = Sight("/calls/{}", ".c-scroll", ".c-row:not([hidden])", "document.querySelector('.c-bars').width > 300")

WATCH = """(() => {
  const filled = () => {
    const rows = document.querySelectorAll(ROWS);
    const scroller = document.querySelector(SCROLLER);
    if (rows.length < 5 || !scroller) return false;
    const edge = Math.min(scroller.getBoundingClientRect().bottom, innerHeight);
    return [...rows].some((row) => row.getBoundingClientRect().bottom >= edge - 40) && (ALSO);
  };
  const frame = (then) => requestAnimationFrame(then);
  const look = () => {
    if (filled()) frame(() => frame(() => drawn(performance.now())));
    else frame(look);
  };
  frame(look);
})();"""

ZOOM = """(frames) => new Promise((done) => {
  const canvas = document.querySelector(".c-bars");
  const { left, top, width } = canvas.getBoundingClientRect();
  const took = [];
  let last = performance.now();
  const step = (n) => requestAnimationFrame(() => {
    const now = performance.now();
    took.push(now - last);
    last = now;
    if (n === frames) return done(took.slice(1));
    const wheel = { deltaY: n < frames / 2 ? -40 : 40, ctrlKey: true, bubbles: true, cancelable: true };
    const where = { clientX: left + width * (0.3 + 0.4 * (n / frames)), clientY: top + 60 };
    canvas.dispatchEvent(new WheelEvent("wheel", { ...wheel, ...where }));
    step(n + 1);
  });
  step(0);
})"""


@dataclass(slots=True)
class Samples:
    """What was measured of one page: ms of a first and of a second opening; of the first also the ms of CPU of the
    page's main thread, which other work on the machine changes less, and the kilobytes.
    """

    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    kilobytes: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """A page at an address; `samples` are of it."""

    url: str
    sight: Sight
    samples: Samples = field(default_factory=Samples)


class Tab:
    """A page that tells when its rows stand, in a browser context that has cached nothing."""

    def __init__(self, page: Page, session: CDPSession, place: Place) -> None:
        self.page = page
        self._session, self._place = session, place
        self._drawn: asyncio.Queue[float] = asyncio.Queue()
        self._bytes: list[float] = []

    @classmethod
    async def fresh(cls, browser: Browser, place: Place) -> Self:
        context = await browser.new_context(viewport=ViewportSize(width=WIDE["width"], height=WIDE["height"]))
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        tab = cls(page, session, place)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        await session.send("Network.enable")
        session.on("Network.loadingFinished", lambda event: tab._bytes.append(event["encodedDataLength"]))
        await tab.page.expose_function("drawn", tab._drawn.put_nowait)
        sight = place.sight
        words = {"ROWS": json.dumps(sight.rows), "SCROLLER": json.dumps(sight.scroller), "ALSO": sight.also}
        script = WATCH
        for word, value in words.items():
            script = script.replace(word, value)
        await tab.page.add_init_script(script)
        return tab

    async def open(self) -> tuple[float, float]:
        """Ms until the rows stand, and the kilobytes that came until then."""
        self._bytes.clear()
        await self.page.goto(self._place.url, wait_until="commit")
        try:
            took = await asyncio.wait_for(self._drawn.get(), LAST_S)
        except TimeoutError:
            said = " ".join((await self.page.inner_text("body")).split())
            raise TimeoutError(f"{self._place.url} shows no rows after {LAST_S:.0f} s but {said[:200]!r}") from None
        return took, sum(self._bytes) / 1e3

    async def cpu(self) -> float:
        """Ms of CPU that the main thread has used."""
        told = await self._session.send("Performance.getMetrics")
        return 1e3 * next(float(one["value"]) for one in told["metrics"] if one["name"] == "TaskDuration")

    async def close(self) -> None:
        await self.page.context.close()


async def measure(browser: Browser, place: Place, keep: bool) -> None:
    """Open it in a fresh context, and then once more."""
    tab = await Tab.fresh(browser, place)
    before = await tab.cpu()
    first, kilobytes = await tab.open()
    cpu = await tab.cpu() - before
    again, _ = await tab.open()
    await tab.close()
    if keep:
        place.samples.first.append(first)
        place.samples.again.append(again)
        place.samples.cpu.append(cpu)
        place.samples.kilobytes.append(kilobytes)


async def zoomed(browser: Browser, place: Place, keys: Sequence[str]) -> list[float]:
    """Ms from frame to frame while the wheel zooms in and out again, after these keys."""
    tab = await Tab.fresh(browser, place)
    await tab.open()
    for key in keys:
        await tab.page.keyboard.press(key)
    frames: list[float] = await tab.page.evaluate(ZOOM, FRAMES)
    await tab.close()
    return frames


def filled(one: Viewer, calls: int) -> Iterator[Summary]:
    """Put calls of one turn into the store; gives what a list shows of each."""
    spans: list[made.Span] = []
    for index in range(calls):
        call = made.phone_call(f"call-{index:05}", 1, start=made.START + index * 500 * made.MS)
        yield Summary.of(call)
        spans += call
        if len(spans) > 20_000 or index == calls - 1:
            one.keep(spans)
            spans = []


def one_call(name: str, spans: int) -> list[made.Span]:
    """A phone call of about so many spans."""
    return made.phone_call(name, round(spans / SPANS_OF_A_TURN))


@dataclass(frozen=True, slots=True)
class Ground:
    """All that is measured: by side ("ours" first) the list and the waterfall, and a huge call of ours."""

    lists: Mapping[str, Place]
    calls: Mapping[str, Place]
    huge: Place


@contextmanager
def ground(calls: int, spans: int, huge: int) -> Iterator[Ground]:
    """Viewers of ours over three stores, and the same spans behind each peer's page that is at hand."""
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        many, wide, vast = (
            stack.enter_context(viewer(Path(folder) / f"{name}.sqlite")) for name in ("many", "wide", "vast")
        )
        listed = list(filled(many, calls))
        newest = made.phone_call(f"call-{calls - 1:05}", 1, start=made.START + (calls - 1) * 500 * made.MS)
        call = one_call("wide", spans)
        wide.keep(call)
        vast.keep(one_call("vast", huge))
        progress(f"{calls} calls, and one of {len(call)} spans, are stored")
        said = replace(LIST, also=f"document.querySelector('.total').textContent.includes('{calls:,}')")
        lists = {"ours": Place(many.url + LIST.path, said)}
        waterfalls = {"ours": Place(f"{wide.url}/calls/wide", CALL)}
        for peer in PEERS:
            if (built := peer.folder) is None:
                continue
            url = stack.enter_context(served(peer, built, peer.prepared(listed, newest)))
            name = f"{peer.name}, {peer.listed} of them" if peer.listed else peer.name
            lists[name] = Place(url + peer.calls.path, peer.calls)
            url = stack.enter_context(served(peer, built, peer.prepared([Summary.of(call)], call)))
            sight = peer.call(call[0].trace.hex())
            waterfalls[peer.name] = Place(url + sight.path, sight)
        yield Ground(lists, waterfalls, Place(f"{vast.url}/calls/vast", CALL))


async def measured(found: Ground, rounds: int, huge_rounds: int, seed: int) -> list[float]:
    """Fill all samples; gives the frames of zooming in the huge call."""
    path = browser_path()
    if path is None:
        raise SystemExit("no chromium here: make test-browser brings it where apt is at hand")

    def side(browser: Browser, place: Place) -> Callable[[bool], Awaitable[None]]:
        return lambda keep: measure(browser, place, keep)

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=FLAGS)
        places = {
            f"{name} {kind}": place for kind in ("lists", "calls") for name, place in getattr(found, kind).items()
        }
        await interleave_async(rounds, {name: side(browser, place) for name, place in places.items()}, seed=seed)
        frames: list[float] = []
        try:  # on a machine that does much else this can take longer than the viewer reads: the rest stands
            await interleave_async(huge_rounds, {"huge": side(browser, found.huge)}, seed=seed, warm=0)
            frames = await zoomed(browser, found.huge, ["*"])
        except TimeoutError as error:
            progress(str(error))
        await browser.close()
    return frames


def rows_of(what: str, places: Mapping[str, Place], goal: float) -> list[Row]:
    """The rows of one page: ours against its goal, then each peer beside ours."""
    ours = places["ours"].samples
    rows = [
        compare(f"ms: {what}, nothing cached", ours.first, goal=goal),
        compare(f"ms: {what}, again", ours.again, goal=goal),
        compare(f"ms of CPU: {what}, main thread", ours.cpu),
        compare(f"KB: {what}, nothing cached", ours.kilobytes),
    ]
    for name, place in places.items():
        peer = place.samples
        if peer is ours:
            continue
        for words, mine, theirs in (("nothing cached", ours.first, peer.first), ("again", ours.again, peer.again)):
            rows.append(compare(f"ms: {what}, {words} / {name}", mine, theirs))
            rows.append(compare(f"ms: the same at p99 / {name}", mine, theirs, at=99))
        rows.append(compare(f"ms of CPU: {what}, main thread / {name}", ours.cpu, peer.cpu))
        rows.append(compare(f"KB: {what}, nothing cached / {name}", ours.kilobytes, peer.kilobytes))
    return rows


def rows(options: Options) -> list[Row]:
    calls, spans, huge, rounds, huge_rounds = (300, 500, 3_000, 2, 1) if options.quick else (CALLS, SPANS, HUGE, 20, 5)
    with ground(calls, spans, huge) as found:
        frames = asyncio.run(measured(found, rounds, huge_rounds, options.seed))
    vast = found.huge.samples
    of_the_huge = {
        f"ms: a call of {huge:,} spans, nothing cached": vast.first,
        f"KB: a call of {huge:,} spans": vast.kilobytes,
        f"ms: a frame while zooming in {huge:,} rows": frames,
    }
    return [
        *rows_of(f"{calls:,} calls", found.lists, LIST_MS),
        *rows_of(f"a call of {spans:,} spans", found.calls, CALL_MS),
        *(compare(name, samples) for name, samples in of_the_huge.items() if samples),
    ]


def main() -> None:
    options = arguments(__doc__ or "")
    report(rows(options), options.json, "The tracing page in Chromium")


if __name__ == "__main__":
    main()
