"""The paths of the server, with a small model and its real processes."""

import json
import multiprocessing
import os
import re
import signal
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest
from repository import ROOT
from serving import KEY, write_small_lm
from starlette.testclient import TestClient

from polar.serve.app import make_app
from polar.serve.hosts import LOCAL
from polar.serve.options import Serve, ServeLimits
from polar.serve.reading import ReaderSetup, read_message
from polar.serve.service import Service
from polar.serve.writing import TextWriter
from polar.text.keys.key import Key
from polar.text.keys.ledger import open_ledger
from polar.text.schemes.robust.settings import RobustSettings
from polar.text.sources import open_vocabulary
from wm_env.lm.models.load import load_lm

LIMITS = ServeLimits(most_characters=2000, most_tokens=150)
ORDER = {"prompt": "the year", "message": "x", "tokens": 120, "temperature": 1.0}


@pytest.fixture(scope="module")
def lm_folder(tmp_path_factory):
    return write_small_lm(tmp_path_factory.mktemp("lm") / "lm")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    return tmp_path_factory.mktemp("ledger") / "nonces"


def client_of(folder, ledger, limits, **options):
    robust, lm = RobustSettings(payload_bits=8), load_lm(folder)
    writer = TextWriter(lm, open_vocabulary(lm), KEY, ledger, robust)
    service = Service(writer, ReaderSetup(KEY, folder, robust, range(4)), limits)
    return TestClient(make_app(service, limits, **options), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(lm_folder, ledger):
    with client_of(lm_folder, ledger, LIMITS) as client:
        yield client


@pytest.fixture(scope="module")
def marked(client):
    answer = client.post("/embed", json=ORDER)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer, status):
    assert answer.status_code == status, answer.text
    (line,) = answer.json().values()
    assert "\n" not in line
    return line


def test_a_message_goes_in_and_comes_out(client, marked):
    assert marked["message_bits"] == f"{ord('x'):08b}"
    assert marked["law"].startswith("exactly the model's law")
    found = client.post("/decode", json={"text": marked["text"]}).json()
    assert (found["message"], found["message_bits"]) == ("x", marked["message_bits"])
    assert found["nonce"] == marked["nonce"]
    assert found["is_marked"]
    assert found["p_value"] < 1e-6


def test_the_marked_part_of_a_text_is_shown(client, marked):
    before = "wherever " * 10
    found = client.post("/detect", json={"text": f"{before}{marked['text']}"}).json()
    assert found["is_marked"]
    assert found["text"].strip() == f"{before}{marked['text']}".strip()
    ((start, end),) = found["parts"]
    assert abs(start - len(before)) < 40
    assert end > len(found["text"]) - 40
    inside = [token["marked"] for token in found["tokens"] if token["start"] >= start]
    outside = [token["marked"] for token in found["tokens"] if token["end"] < start - 20]
    assert sum(inside) / len(inside) > 0.8
    assert sum(outside) / len(outside) < 0.3


def test_tokens_cover_the_text_that_was_read(client, marked):
    found = client.post("/detect", json={"text": f"> {marked['text']}\n"}).json()
    places = [(token["start"], token["end"]) for token in found["tokens"]]
    assert "".join(found["text"][start:end] for start, end in places) == found["text"]


def test_bits_as_a_message(client):
    written = client.post("/embed", json={**ORDER, "message": None, "message_bits": "10100101"}).json()
    found = client.post("/decode", json={"text": written["text"]}).json()
    assert (found["message_bits"], found["message"]) == ("10100101", None)


def test_no_two_texts_have_a_nonce_and_it_is_noted(client, marked, ledger):
    other = client.post("/embed", json=ORDER).json()
    assert other["nonce"] != marked["nonce"]
    assert other["text"] != marked["text"]
    with open_ledger(ledger) as noted:
        for written in (marked, other):
            with pytest.raises(ValueError, match="was used with this key"):
                noted.check_unused(written["nonce"])


def test_a_plain_text_has_no_mark_and_uses_no_nonce(client, ledger):
    with open_ledger(ledger) as noted:
        before = noted.first_free()
    plain = client.post("/plain", json={key: value for key, value in ORDER.items() if key != "message"}).json()
    assert plain["tokens"] >= 120
    found = client.post("/decode", json={"text": plain["text"]}).json()
    assert not found["is_marked"]
    assert (found["message_bits"], found["nonce"], found["parts"]) == (None, None, [])
    with open_ledger(ledger) as noted:
        assert noted.first_free() == before


def test_the_readers_look_for_all_nonces_that_were_used(lm_folder, tmp_path):
    with open_ledger(tmp_path / "nonces") as noted:
        noted.record(*range(6))
    with client_of(lm_folder, tmp_path / "nonces", LIMITS) as client:
        written = client.post("/embed", json=ORDER).json()
        assert written["nonce"] == 6
        assert client.post("/decode", json={"text": written["text"]}).json()["nonce"] == 6


def test_another_key_sees_nothing(lm_folder, marked):
    other = ReaderSetup(Key(bytes(32)), lm_folder, RobustSettings(payload_bits=8), range(4))
    found = read_message(other, marked["text"])
    assert not found.is_marked
    assert found.message_bits is None


@pytest.mark.parametrize("path", ["/decode", "/detect"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n\n",
        "word",
        "Der Bürgermeister sprach am Montag.",
        "市长星期一说",
        "\x00\x01\x02",
        "�" * 50,
        "🙂" * 30,
    ],
    ids=["empty", "space", "lines", "one word", "German", "Chinese", "controls", "no letters", "emoji"],
)
def test_texts_without_a_mark_are_no_trouble(client, path, text):
    answer = client.post(path, json={"text": text})
    assert answer.status_code == 200
    assert not answer.json()["is_marked"]
    assert answer.json()["parts"] == []


@pytest.mark.parametrize("path", ["/decode", "/detect", "/embed", "/plain"])
@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b"", 422, "required"),
        (b"\xff\xfe\x00\x01", 400, "no JSON"),
        (b"\x80\x81\x82", 400, "byte 1 is no UTF-8; send UTF-8"),
        (b"not json", 400, "no JSON"),
        (b'{"text": ', 400, "no JSON"),
        (b"[1, 2]", 422, "JSON object"),
        (b"null", 422, "JSON object|required"),
        (b'{"unknown": 1}', 422, "required"),
        ('{"text": "é"}'.encode("latin-1"), 400, "byte 11 is no UTF-8; send UTF-8"),
        (b"[" * 5000, 400, "nested too deeply; send one object"),
        (b"[" * 15_000, 400, "nested too deeply; send one object"),
        (b'{"tokens": %s}' % (b"1" * 6000), 400, r"more than \d+ digits; send a smaller one"),
        (b" " * 100_000, 413, "bytes"),
    ],
)
def test_rubbish_is_refused_in_a_line(client, path, content, status, says):
    line = refused(client.post(path, content=content, headers={"Content-Type": "application/json"}), status)
    assert re.search(says, line), line


def test_what_is_not_sent_as_json_is_refused(client):
    # A page elsewhere could make a browser send this without asking.
    line = refused(client.post("/decode", content=b'{"text": "a"}', headers={"Content-Type": "text/plain"}), 422)
    assert "application/json" in line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"message": "xy"}, "16 bits: every message"),
        ({"message": None}, "either message or message_bits"),
        ({"message_bits": "01010101"}, "either message or message_bits"),
        ({"message": None, "message_bits": "0101010x"}, "zeros? and ones?|digits 0 and 1"),
        ({"tokens": 0}, "tokens: "),
        ({"tokens": 151}, "a text may have 150"),
        ({"tokens": 1e300}, "tokens: "),
        ({"temperature": 0}, "temperature: "),
        ({"temperature": "hot"}, "temperature: "),
        ({"top_p": 1.5}, "top_p: "),
        ({"prompt": "a" * 2001}, "prompt of 2001"),
        ({"prompt": 5}, "prompt: "),
        ({"key": "mine"}, "key: "),
    ],
)
def test_orders_that_cannot_be_met_are_refused_in_a_line(client, change, says):
    line = refused(client.post("/embed", json={**ORDER, **change}), 422)
    assert re.search(says, line), line


@pytest.mark.parametrize(
    ("path", "name", "order"),
    [
        ("/decode", "text", {}),
        ("/detect", "text", {}),
        ("/plain", "prompt", {}),
        ("/embed", "prompt", {"message": "x"}),
        ("/embed", "message", {"prompt": ""}),
        ("/embed", "message_bits", {"prompt": ""}),
    ],
)
def test_halves_of_letters_are_refused_by_their_place(client, path, name, order):
    content = json.dumps({**order, name: "ab\ud800c"}).encode()
    line = refused(client.post(path, content=content, headers={"Content-Type": "application/json"}), 422)
    assert line.startswith(f"{name}: character 3 is half of a surrogate pair")


def test_names_that_are_no_text_are_refused(client):
    content = b'{"text": "a", "\\ud800": 1}'
    refused(client.post("/decode", content=content, headers={"Content-Type": "application/json"}), 422)


def test_numbers_that_are_none_are_refused(client):
    order = json.dumps(ORDER).replace("1.0", "NaN").encode()
    refused(client.post("/embed", content=order, headers={"Content-Type": "application/json"}), 422)


def test_texts_that_are_too_long_are_refused(client):
    assert "give at most 2000" in refused(client.post("/decode", json={"text": "a" * 2001}), 422)
    assert "bytes" in refused(client.post("/decode", json={"text": "a" * 10_000_000}), 413)


def test_a_body_without_a_length_is_counted(client):
    pieces = (b" " * 10_000 for _ in range(100))
    refused(client.post("/decode", content=pieces, headers={"Content-Type": "application/json"}), 413)


def test_texts_that_take_too_long_are_given_up_and_the_next_is_read(lm_folder, tmp_path):
    limits = ServeLimits(most_characters=20_000, reading_seconds=1.0, writing_seconds=0.1)
    with client_of(lm_folder, tmp_path / "nonces", limits) as client:
        assert "writing" not in refused(client.post("/embed", json=ORDER), 503)
        assert "part of the text" in refused(client.post("/decode", json={"text": "th e" * 5000}), 503)
        while (answer := client.post("/detect", json={"text": "word"})).status_code == 503:
            pass
        assert answer.status_code == 200


def test_unknown_paths_and_methods_are_refused_in_a_line(client):
    refused(client.get("/nothing"), 404)
    refused(client.get("/decode"), 405)
    refused(client.get("/page/../../app.py"), 404)
    for path in ("/decode/", "/status/", "/page", "/docs/"):
        refused(client.get(path, follow_redirects=False), 404)


def test_a_failure_of_the_server_is_said_in_a_line(lm_folder, tmp_path):
    with client_of(lm_folder, tmp_path / "nonces", LIMITS) as client:

        async def fail():
            raise KeyError("a mistake")

        client.app.add_api_route("/fail", fail)
        line = refused(client.get("/fail"), 500)
        assert "mistake" not in line


def test_a_text_whose_reader_was_killed_is_refused_and_the_next_is_read(lm_folder, tmp_path):
    limits = ServeLimits(most_characters=20_000)
    with client_of(lm_folder, tmp_path / "nonces", limits) as client, ThreadPoolExecutor(1) as thread:
        before = set(multiprocessing.active_children())
        answer = thread.submit(client.post, "/decode", json={"text": "th e" * 5000})
        while not answer.done():
            for reader in set(multiprocessing.active_children()) - before:
                os.kill(reader.pid, signal.SIGKILL)
            time.sleep(0.01)
        assert "try again" in refused(answer.result(), 503)
        assert answer.result().headers["Retry-After"]
        while (after := client.post("/detect", json={"text": "word"})).status_code == 503:
            pass
        assert after.status_code == 200


@pytest.fixture(scope="module")
def local_client(lm_folder, tmp_path_factory):
    ledger = tmp_path_factory.mktemp("local") / "nonces"
    with client_of(lm_folder, ledger, LIMITS, hosts=LOCAL) as client:
        yield client


@pytest.mark.parametrize(
    "host",
    ["localhost:8000", "LocalHost", "127.0.0.1:8000", "127.0.0.1", "[::1]:8130", "[::1]", "[0:0:0:0:0:0:0:1]:8130"],
)
def test_a_local_server_answers_to_all_names_of_the_machine_itself(local_client, host):
    assert local_client.get("/status", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "rebound.example:8000",
        "localhost.rebound.example:8000",
        "rebound.example:localhost",
        "[::2]:8000",
        "[::1",
        "::1",
        "localhost:80:80",
        "",
    ],
)
def test_a_local_server_answers_to_no_other_name(local_client, host):
    line = refused(local_client.get("/status", headers={"Host": host}), 400)
    assert "write one of 127.0.0.1, [::1], localhost in the address" in line


def test_the_page_and_the_interface_need_nothing_from_elsewhere(client):
    for path in ("/", "/page/page.js", "/page/page.css", "/page/icon.svg", "/docs"):
        answer = client.get(path)
        assert answer.status_code == 200
        outside = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in outside
        assert "https://" not in outside
    assert client.get("/").headers["Content-Security-Policy"] == "default-src 'self'"


def test_the_interface_is_described(client):
    description = client.get("/openapi.json").json()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (description["info"]["title"], description["info"]["version"]) == (project["name"], project["version"])
    paths = description["paths"]
    assert set(paths) == {"/status", "/embed", "/plain", "/decode", "/detect"}
    schema = paths["/decode"]["post"]["responses"]["422"]["content"]["application/json"]["schema"]
    assert schema["$ref"].endswith("/ProblemBody")


def test_status_says_what_the_server_takes(client):
    status = client.get("/status").json()
    assert (status["payload_bits"], status["most_tokens"], status["most_characters"]) == (8, 150, 2000)
    assert (status["reading"], status["writing"], status["total"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"port": 65_536}, "port=65536"),
        ({"search": 0}, "search=0"),
        ({"payload_bits": 0}, "payload_bits=0"),
        ({"limits": ServeLimits(most_characters=10**6)}, "most_characters=1000000"),
        ({"limits": ServeLimits(readers=0)}, "readers=0"),
        ({"limits": ServeLimits(receiving_seconds=0.0)}, "receiving_seconds=0.0"),
        ({"limits": ServeLimits(sending_seconds=0.0)}, "sending_seconds=0.0"),
    ],
)
def test_options_out_of_range_are_refused(change, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        Serve(tmp_path / "a.key", **change).check()
