"""The command `serve`, over real connections: many clients with rubbish, clients that hang up, and the page."""

import asyncio
import json
import re
import shutil
import socket
import time
from pathlib import Path

import httpx2
import numpy as np
import pytest
from playwright.sync_api import Page, sync_playwright
from serving import KEY, serving

from polar.__main__ import main
from polar.text.keys.key import save_key

CLIENTS = 100
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("server"), ["--waiting", "4", "--receiving-seconds", "1"]) as address:
        yield address


def rubbish(rng):
    """A request that no text comes back for: method, path, body."""
    noise = rng.bytes(int(rng.integers(1, 3000)))
    letters = "".join(map(chr, rng.integers(0x20, 0xD7FF, int(rng.integers(1, 400))).tolist()))
    bodies = [
        noise,
        noise.hex().encode(),
        json.dumps({"text": letters}).encode(),
        json.dumps({"text": [letters]}).encode(),
        json.dumps({"prompt": letters, "message": letters}).encode(),
        json.dumps({letters[:9]: "a"}).encode()[:-1],
        b"[" * 3000,
        b'{"text": "' + b"a" * 400_000,
    ]
    path = str(rng.choice(["/embed", "/decode", "/detect", "/plain", "/status", "/docs", f"/{noise.hex()[:9]}"]))
    return str(rng.choice(["POST", "POST", "POST", "PUT", "DELETE"])), path, bodies[int(rng.integers(len(bodies)))]


def test_a_hundred_clients_with_rubbish_are_all_answered_in_a_line(address):
    async def client(seed, web):
        rng = np.random.default_rng(seed)
        for _ in range(5):
            method, path, body = rubbish(rng)
            answer = await web.request(method, address + path, content=body, headers=JSON)
            if answer.status_code != 200:
                assert 400 <= answer.status_code < 500, answer.text
                (line,) = answer.json().values()
                assert "\n" not in line

    async def play():
        limits = httpx2.Limits(max_connections=CLIENTS)
        async with httpx2.AsyncClient(timeout=300, limits=limits) as web:
            await asyncio.gather(*(client(seed, web) for seed in range(CLIENTS)))
            text = (await web.post(f"{address}/decode", json={"text": "there is a boat"})).json()
            assert not text["is_marked"]
            status = (await web.get(f"{address}/status")).json()
            assert (status["reading"], status["writing"]) == (0, 0)

    asyncio.run(play())


def test_too_many_texts_at_once_are_told_to_come_again(address):
    async def play():
        async with httpx2.AsyncClient(timeout=300) as web:
            order = {"text": "no rain there " * 10}
            answers = await asyncio.gather(*(web.post(f"{address}/decode", json=order) for _ in range(20)))
            statuses = [answer.status_code for answer in answers]
            assert set(statuses) == {200, 429}
            assert statuses.count(200) >= 5
            late = next(answer for answer in answers if answer.status_code == 429)
            assert "try again" in late.json()["error"]
            assert "Retry-After" in late.headers

    asyncio.run(play())


def test_clients_that_hang_up_hold_up_nobody(address):
    host, port = address.removeprefix("http://").split(":")
    order = json.dumps({"prompt": "", "message": "x", "tokens": 300}).encode()
    for _ in range(5):
        with socket.create_connection((host, int(port))) as caller:
            caller.sendall(b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            caller.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(order), order))
    answer = httpx2.post(f"{address}/plain", json={"prompt": "", "tokens": 5}, timeout=300)
    while answer.status_code == 429:
        answer = httpx2.post(f"{address}/plain", json={"prompt": "", "tokens": 5}, timeout=300)
    assert answer.status_code == 200


def test_a_body_that_does_not_come_is_not_waited_for(address):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as caller:
        caller.sendall(b"POST /decode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert caller.recv(4096).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [b"", b"POST /decode HTTP/1.1\r\nHost: loc"], ids=["nothing", "half a header"])
def test_headers_that_do_not_come_are_not_waited_for(address, sent):
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as caller:
        caller.sendall(sent)
        assert caller.recv(4096) == b""


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_server_at_the_own_ipv6_address_is_reached_by_what_it_says(tmp_path):
    with serving(tmp_path, ["--host", "::1"]) as address:
        assert address.startswith("http://[::1]:")
        assert httpx2.get(f"{address}/status").status_code == 200
        answer = httpx2.get(f"{address}/status", headers={"Host": "rebound.example"})
        assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_who_sends_a_body_that_is_too_long_is_answered_and_heard_out(address):
    """The connection ends behind the body, and is not reset while the client sends."""
    host, port = address.removeprefix("http://").split(":")
    length = 4_000_000
    with socket.create_connection((host, int(port)), timeout=60) as caller:
        caller.sendall(b"POST /decode HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length)
        assert caller.recv(4096).startswith(b"HTTP/1.1 413 ")
        for _ in range(10):
            caller.sendall(b"a" * (length // 10))
            time.sleep(0.02)
        while caller.recv(4096):
            pass


def test_what_cannot_be_served_is_refused_in_a_line(tmp_path, capsys):
    key = tmp_path / "a.key"
    assert main(["serve", "--key", str(key)]) == 2
    save_key(KEY, key)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--key", str(key), "--port", str(port)]) == 1
    assert main(["serve", "--key", str(key), "--port", "0", "--model", "no such model"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in errors] == ["error"] * 3
    assert "in use" in errors[1]


def browser_program() -> str | None:
    """A Chromium that can be started: Playwright's own, or the system's."""
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    found = [own] if Path(own).exists() else []
    found += filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    return found[0] if found else None


PROGRAM = browser_program()

needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium: `playwright install chromium` brings one")


@pytest.fixture
def page(address):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        page, said, asked = browser.new_page(), [], []
        page.set_default_timeout(120_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        yield page
        browser.close()
    # The browser itself notes what the server refuses.
    assert [line for line in said if "status of 422" not in line] == []
    assert [url for url in asked if not url.startswith(f"{address}/")] == []


def shades(page: Page, side: str) -> list[float]:
    """Of every token that is shown, how opaque its background is, in [0, 1]."""
    script = "spans => spans.map(span => getComputedStyle(span).backgroundColor)"
    colours: list[str] = page.locator(f"{side} .shown span").evaluate_all(script)
    return [float(re.split("[/,]", colour.rstrip(")"))[-1]) for colour in colours]


@needs_browser
def test_a_text_is_written_read_edited_and_compared_on_the_page(page):
    page.get_by_text("Message, 1 plain letters").wait_for()
    page.get_by_label("Prompt").fill("the year")
    page.get_by_label("Message").fill("x")
    page.get_by_label("Tokens").fill("140")
    page.get_by_role("button", name="Write both texts").click()
    page.locator("#right .shown").wait_for()
    left, right = (page.locator(f"{side} .verdict").inner_text() for side in ("#left", "#right"))
    assert left.split()[:4] == ["A", "message", "message", "x"]
    assert "p-value" in left
    assert right.split() == ["No", "mark", "of", "this", "key", "p-value", "1"]
    text = page.get_by_label("Text to be read").input_value()
    assert page.locator("#left .shown").inner_text().strip() == text.strip()
    assert np.mean(shades(page, "#left")) > 0.5
    assert not any(shades(page, "#right"))

    page.get_by_label("Text to be read").fill("wherever " * 12 + text)
    assert page.locator("#left .verdict").inner_text() == ""
    page.locator("#left .read").click()
    page.locator("#left .shown").wait_for()
    seen = shades(page, "#left")
    assert np.mean(seen[:40]) < 0.1
    assert np.mean(seen[-100:]) > 0.5


@needs_browser
def test_what_the_server_refuses_is_said_on_the_page(page):
    page.get_by_text("Message, 1 plain letters").wait_for()
    page.get_by_label("Message").fill("xyz")
    page.get_by_role("button", name="Write both texts").click()
    page.get_by_text("24 bits: every message").wait_for()
    assert page.get_by_role("button", name="Write both texts").is_enabled()


@needs_browser
def test_the_description_of_the_interface_opens(page, address):
    page.goto(f"{address}/docs")
    page.get_by_text("/embed").first.wait_for()
