"""What a deployment writes down in the cluster: its token, how far its replicas have come, whose a port is.

All in the key-value store of Ray's head. Whoever can read it can run code on the cluster anyway; nothing of it shows in
the dashboard, in a status or in a log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from chains.errors import ChainsError, StartError, describe
from chains.runtime.deployment import State
from chains.wire.settings import new_token

_SPACE = b"chains"


@dataclass(frozen=True, slots=True)
class Step:
    """A replica of a plan's `deployment` has entered `stage`; why it failed, if it did, and the mend."""

    node: str
    replica: str
    stage: State
    why: str = ""
    mend: str = ""
    deployment: str = ""


def told_of(error: Exception, replica: str) -> ChainsError:
    """Why a replica did not start, as its step says it."""
    if isinstance(error, ChainsError):
        return error
    frames = "".join(f"\n  {frame}" for frame in describe(error, replica.partition("#")[0]).frames)
    return StartError(f"{replica} did not start: {type(error).__name__}: {error}{frames}")


def token_of(app: str) -> str:
    """The deployment's token: drawn by whoever asks first, then the same for all, also after an upgrade."""
    key = f"app/{app}/token".encode()
    _internal_kv_put(key, new_token().encode(), overwrite=False, namespace=_SPACE)
    token: bytes = _internal_kv_get(key, namespace=_SPACE)
    return token.decode()


def write_secrets(app: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """Values of environment variables that go past Ray's own settings, which anybody may look at. They take the place
    of all that there were, which are returned."""
    prefix = f"app/{app}/secrets/"
    names = [key.decode().removeprefix(prefix) for key in _internal_kv_list(prefix.encode(), namespace=_SPACE)]
    former = secrets_of(app, names)
    for name, value in secrets.items():
        _internal_kv_put(f"{prefix}{name}".encode(), value.encode(), overwrite=True, namespace=_SPACE)
    for name in former.keys() - secrets.keys():
        _internal_kv_del(f"{prefix}{name}".encode(), namespace=_SPACE)
    return former


def secrets_of(app: str, names: Iterable[str]) -> dict[str, str]:
    """Those of them that were written down; others a process may have from elsewhere."""
    found: dict[str, bytes | None] = {
        name: _internal_kv_get(f"app/{app}/secrets/{name}".encode(), namespace=_SPACE) for name in names
    }
    return {name: value.decode() for name, value in found.items() if value is not None}


def write_step(app: str, step: Step) -> None:
    """Why a replica failed outlives it: Serve ends it at once, and tries again. Of each chainlet the last is kept."""
    failed = step.stage == "failed"
    key = f"app/{app}/steps/{step.node}/failed{step.deployment}" if failed else f"app/{app}/steps/{step.replica}"
    _internal_kv_put(key.encode(), json.dumps(asdict(step)).encode(), overwrite=True, namespace=_SPACE)
    if failed:
        forget_step(app, step.replica)


def forget_step(app: str, replica: str) -> None:
    """Of a replica that ends. If it failed, that stays."""
    _internal_kv_del(f"app/{app}/steps/{replica}".encode(), namespace=_SPACE)


def read_steps(app: str) -> list[Step]:
    """How far each replica has come that started since the last `forget_steps`."""
    found = []
    for key in _internal_kv_list(f"app/{app}/steps/".encode(), namespace=_SPACE):
        value = _internal_kv_get(key, namespace=_SPACE)
        if value:
            found.append(Step(**json.loads(value)))
    return found


def forget_steps(app: str) -> None:
    _internal_kv_del(f"app/{app}/steps/".encode(), del_by_prefix=True, namespace=_SPACE)


def claim_port(port: int, app: str) -> str:
    """Whose port it is: this deployment's from now on, unless another one had it before."""
    key = f"port/{port}".encode()
    _internal_kv_put(key, app.encode(), overwrite=False, namespace=_SPACE)
    owner: bytes = _internal_kv_get(key, namespace=_SPACE)
    return owner.decode()


def take_port(port: int, app: str) -> None:
    """It is this deployment's, whosever it was."""
    _internal_kv_put(f"port/{port}".encode(), app.encode(), overwrite=True, namespace=_SPACE)


def forget(app: str) -> None:
    """All that was written down of a deployment."""
    for key in _internal_kv_list(b"port/", namespace=_SPACE):
        if _internal_kv_get(key, namespace=_SPACE) == app.encode():
            _internal_kv_del(key, namespace=_SPACE)
    _internal_kv_del(f"app/{app}/".encode(), del_by_prefix=True, namespace=_SPACE)
