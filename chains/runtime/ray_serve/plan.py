"""What is deployed and how: plain values, so that a command, a program and a cluster's manifest say it alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from chains.dsl.graph import Graph
from chains.dsl.specs import Resources, nearest
from chains.errors import SettingError
from chains.policy.quota import Quota, Quotas
from chains.policy.routing import Routing
from chains.wire.settings import Tls, WireSettings

T = TypeVar("T")
GATEWAY = "gateway"
"""The name of the deployment that callers reach."""
KEYS = "CHAINS_KEYS"
"""The environment variable with the keys of which its callers must show one."""
VIEWER, VIEWER_KEY = "CHAINS_VIEWER", "CHAINS_VIEWER_KEY"
"""Those with the URL of the tracing page that its spans go to, and with the key of that."""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How replicas live on the cluster. Times in seconds.

    `grace` is what running calls have when their replica is taken away, `patience` how long a call waits for a replica
    when there is none. A replica is asked for its health every `health_period`, and replaced once a hop in it has
    computed for `stuck` without a step. `surge` is how many percent more replicas there are during an upgrade: with 0
    an old one is stopped before a new one starts. `bind` is the address that replicas listen at; "" is their node's.
    `quotas` say who waits for whom at a replica, `routing` how callers choose among them.
    """

    grace: float = 30.0
    patience: float = 30.0
    health_period: float = 1.0
    stuck: float = 120.0
    surge: int = 100
    bind: str = ""
    tls: Tls | None = None
    quotas: Quotas = field(default_factory=Quotas)
    routing: Routing = field(default_factory=Routing)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """From what a manifest says. Raises SettingError for what is not known."""
        values = dict(plain)
        if values.get("tls"):
            values["tls"] = _made(Tls, values["tls"])
        if "routing" in values:
            values["routing"] = _made(Routing, values["routing"])
        if "quotas" in values:
            quotas = dict(values["quotas"])
            tenants = {name: _made(Quota, quota) for name, quota in quotas.get("tenants", {}).items()}
            quotas |= {"default": _made(Quota, quotas.get("default", {})), "tenants": tenants}
            values["quotas"] = _made(Quotas, quotas)
        return _made(cls, values)

    def __post_init__(self) -> None:
        for name in ("grace", "patience", "health_period", "stuck", "surge"):
            value = getattr(self, name)
            least = 0.0 if name in ("grace", "surge") else 0.1
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
                raise SettingError(f"RaySettings({name}={value!r})", mend=f"write a number of at least {least:g}")

    def wire(self, token: str, node_ip: str) -> WireSettings:
        """What a replica on the node with this address listens with, and what its callers dial with."""
        host = self.bind or node_ip
        return WireSettings(token, bind=f"[{host}]:0" if ":" in host else f"{host}:0", tls=self.tls)


@dataclass(frozen=True, slots=True)
class Plan:
    """One chain on a cluster.

    `chain` names it as "package.module:Class" or "file.py:Class", as the cluster's nodes find it; `path` are folders
    that its imports are looked for in. `replicas` fixes how many there are of a chainlet, which is then not scaled;
    `resources` take the place of those that the chain names, `nodes` are the ids of those that it had best stand on.
    `gateway` names what answers callers, "module:function", which is given `door` and the runtime ("": nobody does);
    `gateway_resources` are those of Ray's by which its nodes are known. `version` tells its calls from others'
    ("": a digest of the code), `deployment` what replicas of this one write down from what those before still do.
    """

    chain: str
    path: tuple[str, ...] = ()
    replicas: Mapping[str, int] = field(default_factory=dict)
    gateway: str = ""
    gateways: int = 1
    door: Mapping[str, Any] = field(default_factory=dict)
    settings: RaySettings = field(default_factory=RaySettings)
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gateway_resources: Mapping[str, float] = field(default_factory=dict)
    version: str = ""
    deployment: str = ""

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Self:
        """From what a manifest says. Raises SettingError for what is not known."""
        values = dict(plain)
        if "path" in values:
            values["path"] = tuple(values["path"])
        if "settings" in values:
            values["settings"] = RaySettings.read(values["settings"])
        return _made(cls, values)

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**asdict(self), "path": list(self.path), "door": dict(self.door)}

    def adapted(self, graph: Graph) -> Graph:
        """The chain with the resources that it has here."""
        return graph.changed({name: {"resources": Resources(**one)} for name, one in self.resources.items()})

    def check(self, graph: Graph) -> None:
        """Raises SettingError for counts that make no sense or are of chainlets that the chain does not have, and for a
        name that is taken."""
        if type(self.gateways) is not int or self.gateways < 1:  # a manifest may say anything
            raise SettingError(f"gateways={self.gateways!r}", mend="give a whole number of at least 1")
        for name, count in self.replicas.items():
            if name not in graph.nodes or count < 1:
                raise SettingError(
                    f"replicas={{{name!r}: {count}}}", mend=f"give at least 1, for one of {', '.join(graph.nodes)}"
                )
        for name in (*self.resources, *self.nodes):
            if name not in graph.nodes:
                raise SettingError(f"the chain has no chainlet {name}", mend=nearest(name, tuple(graph.nodes)))
        if self.gateway and GATEWAY in graph.nodes:
            raise SettingError(
                f"a chainlet is called {GATEWAY}, like what answers callers", mend='write @chainlet(name="...")'
            )


def _made(cls: type[T], values: Mapping[str, Any]) -> T:
    known = tuple(one.name for one in fields(cls))  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise SettingError(f"{cls.__name__} has no setting {name!r}", mend=nearest(name, known))
    try:
        return cls(**values)
    except TypeError as error:
        raise SettingError(f"{cls.__name__}: {error}", mend=f"its settings are {', '.join(known)}") from None
