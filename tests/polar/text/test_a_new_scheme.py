"""The page on adding a message scheme, run as it is printed."""

import re
import sys
from types import ModuleType

import pytest
from ascii_lm import write_ascii_lm
from repository import ROOT

from polar.text import schemes
from polar.text.channel import open_channel
from polar.text.decoding import decode
from polar.text.embedding import embed
from polar.text.keys.key import Key
from polar.text.schemes import load_schemes
from polar.text.settings import Settings, settings_from_json
from wm_env.lm.models.load import load_lm

KEY = Key(bytes(32))


@pytest.fixture
def menu(monkeypatch):
    """The scheme of the page, in the table as the page says."""
    pages = [ROOT / "docs" / name for name in ("extending_scheme.md", "extending.md")]
    text = "".join(page.read_text() for page in pages if page.exists())
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Menu(Scheme)" in block]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 40
    module = ModuleType("polar.text.schemes.menu")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "extending", "exec"), vars(module))
    monkeypatch.setattr(schemes, "NAMES", (*schemes.NAMES, "menu"))
    return module.Menu


def test_the_scheme_of_the_page_sends_a_message(menu, tmp_path):
    assert "menu" in load_schemes()
    settings = Settings(menu(sentences=3))
    assert settings_from_json(settings.to_json(), "file") == settings
    channel = open_channel(load_lm(write_ascii_lm(tmp_path / "lm")), "the", settings)
    sent = embed(channel, b"hi", KEY, 5)
    assert str(sent.cost) == "TV to the model's law at most 1"
    copied = f"Dear all,\r\n\r\n{sent.text.strip()}\r\n".encode()
    found = decode(channel, copied, KEY, range(8))
    assert (found.message, found.nonce) == (b"hi", 5)
    assert decode(channel, sent.text.replace("dance", "rest").encode(), KEY, [5]).message is None
    with pytest.raises(ValueError, match="sentences=9"):
        open_channel(channel.source.lm, "", Settings(menu(sentences=9)))
