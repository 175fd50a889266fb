"""What a viewer can be told, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chains.errors import SettingError
from chains.viewer.settings import ViewerSettings, default_traces


def test_the_store_is_where_the_environment_says() -> None:
    assert default_traces({"CHAINS_TRACES": "/a/b.sqlite", "XDG_DATA_HOME": "/x"}) == Path("/a/b.sqlite")
    assert default_traces({"XDG_DATA_HOME": "/x"}) == Path("/x/chains/traces.sqlite")
    assert default_traces({}) == Path.home() / ".local/share/chains/traces.sqlite"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "[::1]", "localhost", "a.localhost"])
def test_on_loopback_no_key_is_needed(host: str) -> None:
    assert ViewerSettings(host=host).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com"])
def test_elsewhere_one_is(host: str) -> None:
    with pytest.raises(SettingError, match="no key is set; add --key KEY"):
        ViewerSettings(host=host)
    assert not ViewerSettings(host=host, keys=("k",)).loopback
    assert ViewerSettings(host=host, insecure=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"port": 70_000}, "port is 70000"),
        ({"otlp_grpc": -1}, "otlp_grpc is -1"),
        ({"max_age_days": 0.0}, "max_age_days is 0"),
        ({"max_bytes": 5}, "max_bytes is 5"),
        ({"keys": ("",)}, "a key is empty"),
        ({"keys": ("kä",)}, "not ASCII"),
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        ViewerSettings(**wrong)


def test_a_key_is_not_shown() -> None:
    assert "hush" not in repr(ViewerSettings(keys=("hush",)))
