"""Settings of the wire: what they refuse, and that a token is never shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chains.errors import SettingError
from chains.wire.settings import Tls, WireSettings, new_token

TOKEN = "a-token-of-more-than-16"


def test_defaults_listen_on_loopback() -> None:
    assert WireSettings(TOKEN).bind == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token": "short"}, "16 characters"),
        ({"token": "with a blank in it, no"}, "no header"),
        ({"bind": "127.0.0.1"}, "host:port"),
        ({"bind": ":80"}, "host:port"),
        ({"bind": "127.0.0.1:70000"}, "host:port"),
        ({"bind": "0.0.0.0:80"}, "all interfaces"),
        ({"bind": "[::]:80"}, "all interfaces"),
        ({"bind": "*:80"}, "all interfaces"),
        ({"open_calls": 0}, "at least 1"),
        ({"queued_bytes": 1.5}, "at least 1"),
        ({"direct": "yes"}, "True or False"),
        ({"shared_bytes": 0}, "at least 1"),
    ],
)
def test_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        WireSettings(**{"token": TOKEN, **changes})


def test_all_interfaces_only_when_said() -> None:
    assert WireSettings(TOKEN, bind="0.0.0.0:0", everywhere=True).bind == "0.0.0.0:0"


def test_the_token_is_not_shown() -> None:
    assert TOKEN not in repr(WireSettings(TOKEN))


def test_new_tokens_are_good_tokens() -> None:
    assert WireSettings(new_token()).token != new_token()


def test_tls_names_files_that_are_there(tmp_path: Path) -> None:
    pem = tmp_path / "cert.pem"
    pem.write_text("x")
    with pytest.raises(SettingError, match="cert and key"):
        Tls(cert=str(pem))
    with pytest.raises(SettingError, match="no file"):
        Tls(ca=str(tmp_path / "none.pem"))
    assert Tls(cert=str(pem), key=str(pem)).read(str(pem)) == b"x"
