"""What a manifest may say, and what it is told when that is wrong."""

from __future__ import annotations

import json

import pytest

from chains.dsl.graph import build
from chains.errors import SettingError
from chains.policy.quota import Quota, Quotas
from chains.runtime.ray_serve.plan import Plan, RaySettings
from tests.chains.runtime.ray_serve import chain_on_ray as chain


def test_a_plan_is_json_and_back() -> None:
    plan = Plan(
        "call.py:Call",
        ("/srv",),
        {"Worker": 2},
        gateway="chains.serve:door",
        gateways=2,
        door={"port": 1},
        settings=RaySettings(grace=1.0, surge=0),
    )
    assert Plan.read(json.loads(json.dumps(plan.plain()))) == plan
    assert Plan.read({"chain": "call.py"}) == Plan("call.py")
    tenants = {"clinic": Quota(weight=2.0)}
    some = Plan.read({"chain": "call.py", "settings": {"quotas": {"tenants": {"clinic": {"weight": 2.0}}}}})
    assert some.settings.quotas == Quotas(tenants=tenants) and Plan.read(some.plain()) == some


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"chain": "a.py", "replica": {}}, "Plan has no setting 'replica'; write replicas="),
        ({"chain": "a.py", "settings": {"grase": 1}}, "RaySettings has no setting 'grase'; write grace="),
        ({"chain": "a.py", "settings": {"tls": {"kee": ""}}}, "Tls has no setting 'kee'"),
        ({"chain": "a.py", "settings": {"quotas": {"tenants": {"a": {"wait": 1}}}}}, "Quota has no setting 'wait'"),
        (
            {"chain": "a.py", "settings": {"routing": {"choises": 1}}},
            "Routing has no setting 'choises'",
        ),
        ({}, "Plan: .*missing.*chain"),
        ({"chain": "a.py", "settings": {"patience": 0}}, r"RaySettings\(patience=0\)"),
        ({"chain": "a.py", "settings": {"grace": "5"}}, r"RaySettings\(grace='5'\)"),
    ],
)
def test_what_is_not_known_is_refused(plain: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Plan.read(plain)


def test_counts_are_of_chainlets_that_there_are() -> None:
    with pytest.raises(SettingError, match="give at least 1, for one of Worker, Front"):
        Plan("x", replicas={"Nobody": 1}).check(build(chain.Front))
    with pytest.raises(SettingError, match="give at least 1"):
        Plan("x", replicas={"Worker": 0}).check(build(chain.Front))
    for count in (0, 1.5, True):
        with pytest.raises(SettingError, match=r"gateways=.*; give a whole number of at least 1"):
            Plan("x", gateways=count).check(build(chain.Front))  # type: ignore[arg-type]


def test_replicas_listen_at_their_node_unless_told_otherwise() -> None:
    token = "t" * 32
    assert RaySettings().wire(token, "10.0.0.7").bind == "10.0.0.7:0"
    assert RaySettings().wire(token, "fd00::7").bind == "[fd00::7]:0"
    assert RaySettings(bind="127.0.0.1").wire(token, "10.0.0.7").bind == "127.0.0.1:0"
