"""TWP's routes over HTTP, without an engine."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import aiohttp
import pytest
from small_server import Replica, serving

from patches.http.broadcast import FULL, WATCHERS_MAX, Broadcast


async def call(
    method: str, url: str, body: Any = None, key: str | None = None, kind: str = "application/json"
) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None
    if body is not None:
        headers["Content-Type"] = kind
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, data=data, headers=headers) as answer,
    ):
        text = await answer.text()
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status, json.loads(text) if is_json else text


async def test_a_change_is_made_on_all_replicas_and_audited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    with serving(Replica(0), Replica(1)) as server:
        url = server.url + "/twp/config"
        status, made = await call("PATCH", url, {"gamma": 0.3, "itl_slo": "80ms"})
        assert status == 200
        assert made["changes"] == {
            "gamma": {"from": 0.15, "to": 0.3},
            "itl_slo_ms": {"from": 50.0, "to": 80.0},
        }
        assert (made["policy"], made["unread"]) == ("twp", ["itl_slo_ms"])
        assert [one["replica"] for one in made["replicas"]] == [0, 1]
        assert [one.runtime.config.gamma for one in server.replicas] == [0.3, 0.3]
        assert "TWP audit: changed by 127.0.0.1:" in caplog.text
        said = "gamma 0.15 -> 0.3, itl_slo_ms 50.0 -> 80.0 (revision 1); policy twp does not read "
        assert said + "itl_slo_ms" in caplog.text
        _, shown = await call("GET", url)
        assert shown["config"]["gamma"] == 0.3
        assert shown["changes"][-1]["changes"]["gamma"] == [0.15, 0.3]
        assert shown["fixed"]["policy"]
        status, same = await call("PATCH", url, {"gamma": 0.3})
        assert (status, same["changes"], same["revision"]) == (200, {}, 1)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"gamma": 7}, 400, "gamma = 7 (PATCH): Input should be less than or equal to 1"),
        ({"gama": 0.2}, 400, "did you mean gamma?"),
        ({"policy": "slo"}, 400, "cannot change while serving"),
        ({}, 400, "no field given"),
        (b"[1]", 400, "not an object"),
        (b"{", 400, "not JSON"),
        (b'{"gamma": 0.1, "gamma": 0.2}', 400, "gamma is given twice"),
        (b'{"gamma": NaN}', 400, "NaN is no JSON number"),
        (b'{"gamma": ' + b"[" * 60_000, 400, "JSON"),
        (b"\xff", 400, "not JSON"),
    ],
)
async def test_what_cannot_be_changed_is_refused_with_the_reason(
    body: Any, status: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Replica()) as server:
        got, answer = await call("PATCH", server.url + "/twp/config", body)
        assert (got, said in answer["error"]) == (status, True), answer
        assert server.replicas[0].runtime.revision == 0


async def test_json_must_be_called_so() -> None:
    with serving(Replica()) as server:
        url = server.url + "/twp/config"
        status, answer = await call("PATCH", url, {"gamma": 0.2}, kind="text/plain")
        assert (status, "Content-Type" in answer["error"]) == (415, True)


async def test_pages_of_other_sites_may_not_change_it() -> None:
    with serving(Replica()) as server:
        async with aiohttp.ClientSession() as session:
            for origin, status in (("http://elsewhere.example", 403), (server.url, 200)):
                async with session.patch(
                    server.url + "/twp/config", json={"gamma": 0.3}, headers={"Origin": origin}
                ) as answer:
                    assert answer.status == status
        assert server.replicas[0].runtime.revision == 1


async def test_an_origin_that_is_no_address_is_refused_in_words() -> None:
    with serving(Replica()) as server:
        async with aiohttp.ClientSession() as session:
            for origin in ("http://[", "null", "", "http://[::1", "x" * 5000):
                async with session.patch(
                    server.url + "/twp/config", json={"gamma": 0.3}, headers={"Origin": origin}
                ) as answer:
                    told = await answer.json()
                    assert (answer.status, "may not change" in told["error"]) == (403, True)
                    assert len(told["error"]) < 400
        assert server.replicas[0].runtime.revision == 0


@pytest.mark.parametrize(
    "body",
    [
        {"x\nTWP audit: changed by 10.0.0.1:1: gamma 1 -> 2 (revision 9)": 1},
        {"gamma": "a\nTWP audit: forged"},
        {"a\x1b[2J\u2028": {"b\n": 1}},
        b'{"\\ud800\\n": "\\ud800"}',
        b'{"a\\nb": 1, "a\\nb": 2}',
        {"law": "\n" * 30_000},
    ],
)
async def test_nobody_writes_lines_into_the_log(
    body: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with serving(Replica()) as server:
        status, answer = await call("PATCH", server.url + "/twp/config", body)
    assert (status, answer["error"].isprintable()) == (400, True)
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 4200


async def test_a_body_without_end_is_refused() -> None:
    with serving(Replica()) as server:
        status, answer = await call("PATCH", server.url + "/twp/config", b" " * 70_000)
        assert (status, "longer than" in answer["error"]) == (413, True)


async def test_a_replica_that_fails_takes_the_others_back() -> None:
    good, bad = Replica(0), Replica(1)
    with serving(good, bad) as server:
        # Agrees to the check and is at another revision when the change comes.
        ask = server.ask

        async def interfering(kind: str, **fields: Any) -> list[dict[str, Any]]:
            if kind == "change":
                bad.runtime.revision += 5
                said = await ask(kind, **fields)
                bad.runtime.revision -= 5
                return said
            return await ask(kind, **fields)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("patches.http.changes.ask", interfering)
            status, answer = await call("PATCH", server.url + "/twp/config", {"gamma": 0.3})
        assert (status, "not changed" in answer["error"]) == (409, True)
        assert [one.runtime.config.gamma for one in server.replicas] == [0.15, 0.15]


async def test_changes_at_once_are_made_one_after_the_other() -> None:
    with serving(Replica()) as server:
        url = server.url + "/twp/config"
        values = [0.05 + 0.01 * step for step in range(12)]
        done = await asyncio.gather(*(call("PATCH", url, {"gamma": value}) for value in values))
        assert [status for status, _ in done] == [200] * 12
        assert server.replicas[0].runtime.revision == 12


async def test_a_waiting_request_is_explained_on_whichever_replica_it_is() -> None:
    loaded = Replica(1, h0_tokens=100.0, l_min_ms=10.0)
    names = loaded.arrive(40)
    with serving(Replica(0), loaded) as server:
        status, found = await call("GET", f"{server.url}/twp/explain/{names[-1]}")
        assert (status, found["replica"], found["state"]) == (200, 1, "waiting")
        assert found["position"] <= found["waiting"]
        assert "before it" in found["why"]
        status, answer = await call("GET", server.url + "/twp/explain/no/such%20one")
        assert (status, "no request 'no/such one'" in answer["error"]) == (404, True)


async def test_a_scheduler_that_does_not_answer_is_a_504_in_words() -> None:
    with serving(Replica()) as server:
        server.silent = True
        for path in ("state", "config", "explain/x"):
            status, answer = await call("GET", f"{server.url}/twp/{path}")
            assert (status, "hangs" in answer["error"]) == (504, True)


async def test_keys_protect_the_data_and_not_the_page() -> None:
    with serving(Replica(), api_key="k") as server:
        for path in ("", "/static/page.js"):
            assert (await call("GET", server.url + "/twp" + path))[0] == 200
        for path in ("/state", "/config", "/events", "/explain/x", "/static/../state"):
            assert (await call("GET", server.url + "/twp" + path))[0] == 401
        assert (await call("PATCH", server.url + "/twp/config", {"gamma": 0.2}))[0] == 401
        assert (await call("GET", server.url + "/twp/state", key="k"))[0] == 200
        assert (await call("PATCH", server.url + "/twp/config", {"gamma": 0.2}, key="k"))[0] == 200
        assert (await call("GET", server.url + "/twp/static/nothing"))[0] == 404


async def test_watchers_share_looks_and_nobody_looks_for_nobody() -> None:
    looked = 0

    async def look() -> dict[str, Any]:
        nonlocal looked
        looked += 1
        return {"number": looked}

    shared = Broadcast(look, lambda: False, every_s=0.02)

    async def first(count: int) -> list[str]:
        events = []
        async for event in shared.watch():
            events.append(event)
            if len(events) > count:
                break
        return events

    one, other = await asyncio.gather(first(10), first(10))
    assert one[1:] == other[1:]
    assert looked <= 12
    await asyncio.sleep(0.1)
    alone = looked
    await asyncio.sleep(0.1)
    assert (looked, shared.watchers) == (alone, 0)
    # Who comes later sees what others saw, and looking starts again.
    (past, new) = await first(1)
    assert past.startswith('event: past\ndata: [{"number":1},')
    assert f'{{"number":{alone + 1}}}' in new


async def test_a_watcher_that_does_not_read_holds_up_nobody() -> None:
    async def look() -> dict[str, Any]:
        return {}

    shared = Broadcast(look, lambda: False, every_s=0.001)
    slow = shared.watch()
    await anext(slow)
    quick = shared.watch()
    for _ in range(60):
        await anext(quick)
    assert shared.looks >= 59
    await slow.aclose()
    await quick.aclose()


async def test_streams_end_when_the_server_stops() -> None:
    stopping = False

    async def look() -> dict[str, Any]:
        return {}

    shared = Broadcast(look, lambda: stopping, every_s=0.01)
    events = []
    async for event in shared.watch():
        events.append(event)
        stopping = len(events) > 3
    assert len(events) >= 4


async def test_streams_go_on_after_a_look_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    looked = 0

    async def look() -> dict[str, Any]:
        nonlocal looked
        looked += 1
        if looked in (2, 3):
            raise RuntimeError("anything\nat all")
        return {"number": looked} if looked != 5 else {"number": object()}

    shared = Broadcast(look, lambda: False, every_s=0.001)
    events: list[str] = []
    async with asyncio.timeout(10):
        async for event in shared.watch():
            events.append(event)
            if len(events) == 7:
                break
    told = [json.loads(event.split("data: ")[1]) for event in events[1:]]
    assert [look.get("number") for look in told] == [1, None, None, 4, None, 6]
    assert r"RuntimeError: anything\nat all" in told[1]["error"]
    assert told[1]["time_unix_s"] > 1e9
    # Told once for the same reason, not with every look.
    assert [record.message for record in caplog.records if "cannot look" in record.message] == [
        "TWP cannot look at its schedulers for the page"
    ] * 2


async def test_streams_end_when_the_task_that_feeds_them_does() -> None:
    async def look() -> dict[str, Any]:
        return {}

    shared = Broadcast(look, lambda: False, every_s=0.001)
    async with asyncio.timeout(10):
        async for _ in shared.watch():
            if shared.looks > 3:
                assert shared._task is not None
                shared._task.cancel()
                # The stream ends by itself; what was handed over before still comes.
    assert shared.watchers == 0


async def test_so_many_may_watch_and_no_more() -> None:
    with serving(Replica()) as server:
        url = server.url + "/twp/events"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            streams = [await session.get(url) for _ in range(WATCHERS_MAX)]
            for stream in streams:
                assert stream.status == 200
                assert (await stream.content.readline()).strip() == b"event: past"
            async with session.get(url) as beyond:
                assert beyond.status == 503
                assert int(beyond.headers["Retry-After"]) > 0
                assert f"{WATCHERS_MAX} watchers" in (await beyond.json())["error"]
            streams.pop().close()
            async with asyncio.timeout(10):
                while True:
                    async with session.get(url) as again:
                        if again.status == 200:
                            break
                    await asyncio.sleep(0.05)
            for stream in streams:
                stream.close()


async def test_one_too_many_on_its_way_is_told_so() -> None:
    async def look() -> dict[str, Any]:
        return {}

    shared = Broadcast(look, lambda: False, every_s=0.001)
    streams = [shared.watch() for _ in range(WATCHERS_MAX)]
    for stream in streams:
        await anext(stream)
    assert [event async for event in shared.watch()] == [
        f'event: error\ndata: {{"error": "{FULL}"}}\n\n'
    ]
    for stream in streams:
        await stream.aclose()
