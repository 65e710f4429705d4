"""The live page in a real browser, over TWP's own routes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Page, opened
from small_server import Replica, serving

PLOTS = """Array.from(document.querySelectorAll('.chart canvas')).map(canvas => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set();
  for (let i = 0; i < pixels.length; i += 4)
    if (pixels[i + 3] > 200) seen.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
  return [canvas.closest('.chart').id, seen.size];
})"""
"""How many different colours each plot has drawn."""

CONTRAST = """(() => {
  const channel = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const back = parts(getComputedStyle(node).backgroundColor);
      if (back.length < 4 || back[3] > 0.99) return back;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = Array.from(node.childNodes).some(c => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.checkVisibility() || node.className === 'spoken') continue;
    const [a, b] = [light(parts(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([node.textContent.trim().slice(0, 40), ratio]);
  }
  return low;
})()"""
"""Texts whose contrast to what is behind them is below that of WCAG 2 AA."""


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with opened() as tab:
        await tab.look(1280, 900)
        yield tab
        assert tab.errors == []


def busy(**fields: Any) -> Replica:
    """A replica whose window is too small for those who come."""
    replica = Replica(**{"l_min_ms": 10.0, "h0_tokens": 200.0, **fields})
    replica.arrive(60)
    return replica


async def connected(page: Page, url: str) -> None:
    await page.open(url + "/twp")
    await page.until("(m => m && m.innerText !== 'connecting')(document.querySelector('#mode'))")


async def test_it_shows_what_holds_requests_and_draws(page: Page) -> None:
    with serving(busy()) as server:
        await connected(page, server.url)
        await page.until(
            "/requests wait: those who run/.test(document.querySelector('#why').innerText)"
        )
        assert await page.text("#mode") == "twp decides"
        assert await page.text("#model") == "small-model"
        # Four looks: something to draw a line through.
        await page.until("document.querySelectorAll('.chart canvas').length >= 5")
        drawn = dict(await page.until(f"(p => p.every(x => x[1] > 5) && p)({PLOTS})"))
        assert {"chart-step", "chart-window", "chart-queue", "chart-kv", "chart-rate"} <= set(drawn)
        label = "document.querySelector('#chart-window .plot').getAttribute('aria-label')"
        assert "load K" in await page.run(label)
        assert "inside the window" in await page.text("#admissions")
        assert "no room" in await page.text("#holds")
        assert all(url.startswith(server.url) for url in page.requests)


async def test_the_text_follows_the_state(page: Page) -> None:
    replica = Replica(l_min_ms=10.0)
    with serving(replica) as server:
        await connected(page, server.url)
        assert await page.text("#why") == "Idle: nobody waits, nobody runs."
        assert "No step was measured" in await page.text("#chart-step")
        replica.arrive(3, output=100)
        await page.until(
            "/Nobody waits; 3 requests run/.test(document.querySelector('#why').innerText)"
        )
        await page.until("document.querySelector('#why').innerText.startsWith('Idle')")
        assert await page.run("document.querySelector('#why-card').dataset.kind") == "waiting"


async def test_a_fallback_is_loud(page: Page) -> None:
    replica = busy()
    with serving(replica) as server:
        await connected(page, server.url)
        replica.fall_back()
        await page.until("document.querySelector('#mode').innerText === 'fell back to stock'")
        assert "TWP FELL BACK to stock SGLang scheduling" in await page.text("#why")
        assert await page.run("document.querySelector('#why-card').dataset.kind") == "bad"


async def test_several_replicas_have_a_choice_and_one_line_each(page: Page) -> None:
    fallen = Replica(1)
    with serving(busy(), fallen, Replica(2)) as server:
        fallen.fall_back()
        await connected(page, server.url)
        await page.until("document.querySelectorAll('#why-others li').length === 2")
        assert await page.text("#mode") == "1 of 3 fell back"
        assert (await page.text("#why")).startswith("Replica 0: ")
        assert "Replica 1: TWP FELL BACK" in await page.text("#why-others")
        await page.run(
            "(s => { s.value = '2'; s.dispatchEvent(new Event('change')); })"
            "(document.querySelector('#replica'))"
        )
        assert await page.text("#why") == "Replica 2: Idle: nobody waits, nobody runs."


@pytest.mark.parametrize(
    ("policy", "mode", "shows", "lacks"),
    [
        ("observe", "observes, SGLang decides", "What TWP would have done", "objective 50"),
        ("slo", "slo decides", "objective 50 ms", "What TWP would have done"),
        ("fcfs", "fcfs decides", "no objective is stated", "Load in the window"),
        ("dynamic-batch", "dynamic-batch decides", "objective 100 ms", "Load in the window"),
    ],
)
async def test_policies_without_some_fields_are_shown_without(
    page: Page, policy: str, mode: str, shows: str, lacks: str
) -> None:
    replica = Replica(policy=policy)
    replica.arrive(12)
    with serving(replica) as server:
        await connected(page, server.url)
        await page.until(f"document.body.innerText.includes({shows!r})")
        assert await page.text("#mode") == mode
        shown = await page.text("body")
        assert lacks not in shown
        for nothing in ("undefined", "NaN", "null", "[object"):
            assert nothing not in shown


async def test_the_configuration_follows_a_change(page: Page) -> None:
    with serving(Replica()) as server:
        await connected(page, server.url)
        await page.run("document.querySelector('#configuration').open = true")
        await page.until("/gamma\\s+0.15/.test(document.querySelector('#config').innerText)")
        sent = await page.run(
            "fetch('twp/config', {method: 'PATCH', headers: {'Content-Type': 'application/json'}, "
            "body: '{\"gamma\": 0.35}'}).then(answer => answer.status)"
        )
        assert sent == 200
        await page.until("/gamma\\s+0.35/.test(document.querySelector('#config').innerText)")
        assert "gamma 0.15 → 0.35 (127.0.0.1:" in await page.text("#changes")
        assert "changed once" in await page.text("#revision")


async def test_an_answer_that_does_not_come_is_said_and_got_over(page: Page) -> None:
    with serving(Replica()) as server:
        await connected(page, server.url)
        server.silent = True
        await page.until("document.querySelector('#mode').innerText === 'no answer'")
        assert "it hangs" in await page.text("#why")
        server.silent = False
        await page.until("document.querySelector('#mode').innerText === 'twp decides'")


async def test_a_server_that_ends_is_said(page: Page) -> None:
    with serving(Replica()) as server:
        await connected(page, server.url)
        server.manager.gracefully_exit = True
        await page.until("document.querySelector('#mode').innerText === 'connection lost'")
        assert "Trying again" in await page.text("#why")


async def test_a_key_is_asked_for_and_used(page: Page) -> None:
    with serving(Replica(), api_key="let me in") as server:
        await page.open(server.url + "/twp")
        await page.until("document.querySelector('#mode')?.innerText === 'locked'")
        assert await page.run("!document.querySelector('#key-form').hidden")
        for key, mode in (("wrong", "locked"), ("let me in", "twp decides")):
            await page.run(
                f"(k => {{ k.value = {key!r}; k.form.requestSubmit(); }})"
                "(document.querySelector('#key'))"
            )
            await page.until(f"document.querySelector('#mode').innerText === {mode!r}")
        assert await page.run("document.querySelector('#key-form').hidden")
        # The browser notes the two answers without a key; nothing else went wrong.
        assert all("401" in error for error in page.errors)
        page.errors.clear()


@pytest.mark.parametrize("dark", [False, True])
async def test_phone_desktop_and_dark_can_be_read(page: Page, dark: bool, tmp_path: Path) -> None:
    replica = busy(policy="observe")
    with serving(replica, Replica(1)) as server:
        await page.look(390, 844, dark=dark, phone=True)
        await connected(page, server.url)
        await page.until("document.querySelectorAll('.chart canvas').length >= 5")
        wide = "[document.documentElement.scrollWidth, innerWidth]"
        assert await page.run(wide) == [390, 390]
        assert await page.run(CONTRAST) == []
        await page.look(1280, 900, dark=dark)
        await page.until("document.querySelector('.chart canvas').clientWidth > 300")
        assert await page.run(CONTRAST) == []
        back = await page.run("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(15, 20, 27)") == dark
        await page.picture(tmp_path / "page.png")
        width, height = struct.unpack(">II", (tmp_path / "page.png").read_bytes()[16:24])
        # Less a scroll bar.
        assert (width > 1240, height > 600) == (True, True)


async def test_everything_that_is_operated_has_a_name(page: Page) -> None:
    with serving(busy(), Replica(1)) as server:
        await connected(page, server.url)
        await page.until("document.querySelectorAll('.chart canvas').length >= 5")
        tree = await page.call("Accessibility.getFullAXTree")
        for node in tree["nodes"]:
            role = node.get("role", {}).get("value")
            if role in ("button", "combobox", "textbox", "img", "meter", "link", "image"):
                assert node.get("name", {}).get("value"), node
        assert await page.run("document.documentElement.lang") == "en"
