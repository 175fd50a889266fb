"""One tracing page for the cluster: a detached actor on the head's node that keeps the viewer's process running.

What it is and where, is written down in the cluster; it is found again by the next deployment, and goes with the last.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chains.errors import ChainsError, StartError, Unavailable
from chains.runtime.ray_serve.reach import node_ip

NAME, NAMESPACE = "chains-viewer", "chains"
_KEY = b"viewer"
_SPACE = b"chains"
START_S = 60.0
STOP_S = 8.0
AGAIN_S = 15.0
"""Seconds in which a viewer that died gives its port back."""
HEAD = "node:__internal_head__"


@dataclass(frozen=True, slots=True)
class Shown:
    """The page that runs: where gateways send spans, the store on its node, and the key that both ask for."""

    endpoint: str
    traces: str
    key: str = ""

    @property
    def link(self) -> str:
        """What a browser opens; with the key, which the page takes out of its address at once."""
        return f"{self.endpoint}/" + (f"?key={self.key}" if self.key else "")


class ViewerActor:
    """Runs `opens`, "module:function" that gives an async context manager from plain settings, until it is stopped."""

    def __init__(self, opens: str, settings: Mapping[str, Any]) -> None:
        self._opens, self._settings = opens, dict(settings)
        self._ready, self._over = threading.Event(), threading.Event()
        self._shown: Shown | None = None
        self._error: ChainsError | None = None
        self._thread = threading.Thread(target=self._run, name="viewer", daemon=True)
        self._thread.start()

    def shown(self) -> dict[str, str]:
        """What runs. Raises StartError when it does not."""
        self._ready.wait(START_S)
        if self._shown is None:
            raise StartError(str(self._error) if self._error else f"the viewer has not started in {START_S:g} s")
        return asdict(self._shown)

    def stop(self) -> None:
        """Return once what was taken in is written down."""
        self._over.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        logging.basicConfig(level=logging.WARNING)
        try:
            asyncio.run(self._serve())
        except ChainsError as error:
            self._error = error
        except Exception as error:  # told to whoever asks: nobody waits for this thread
            self._error = StartError(f"the viewer ended: {type(error).__name__}: {error}")
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        module, _, name = self._opens.partition(":")
        settings = self._settings if self._settings.get("host") else {**self._settings, "host": node_ip()}
        before, until = shown_before(), time.monotonic() + AGAIN_S
        if before is not None:  # this one takes the place of one that died: gateways know its port
            settings["port"] = int(before.endpoint.rpartition(":")[2])
        while True:
            viewer = getattr(importlib.import_module(module), name)(settings)
            async with viewer:
                if viewer.moved and before is not None and time.monotonic() < until:
                    await asyncio.sleep(0.5)
                    continue
                key = next(iter(viewer.settings.keys), "")
                self._shown = Shown(viewer.endpoint, str(viewer.settings.traces), key)
                _write(self._shown)
                self._ready.set()
                await asyncio.to_thread(self._over.wait)
                return


def _write(shown: Shown) -> None:
    _internal_kv_put(_KEY, json.dumps(asdict(shown)).encode(), overwrite=True, namespace=_SPACE)


def shown_before() -> Shown | None:
    """What was written down of the page, whether it runs or not."""
    found = _internal_kv_get(_KEY, namespace=_SPACE)
    return Shown(**json.loads(found)) if found else None


def running() -> Shown | None:
    """The page of this cluster, None if there is none."""
    return shown_before() if _actor() is not None else None


def _actor() -> Any:
    with suppress(ValueError):
        return ray.get_actor(NAME, namespace=NAMESPACE)
    return None


def start(opens: str, settings: Mapping[str, Any]) -> Shown:
    """Start the page, or find the one that runs, whatever its settings. Raises StartError, Unavailable."""
    if _actor() is None:
        _internal_kv_del(_KEY, namespace=_SPACE)
    strategy = NodeAffinitySchedulingStrategy(_head(), soft=False)
    made = ray.remote(ViewerActor).options(
        name=NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=4,
        scheduling_strategy=strategy,
    )
    try:
        actor = made.remote(opens, dict(settings))
        return Shown(**ray.get(actor.shown.remote(), timeout=START_S))
    except GetTimeoutError:
        end()
        raise Unavailable(f"the tracing page has not started in {START_S:g} s", mend="deploy with --no-view") from None
    except RayError as error:
        end()
        cause = getattr(error, "cause", None)
        told = str(cause) if isinstance(cause, ChainsError) else str(error).strip().splitlines()[-1]
        raise StartError(f"the tracing page did not start: {told}", mend="deploy with --no-view") from None


def end() -> Shown | None:
    """End it, what it has taken in written down first; what it was, None if there was none."""
    actor, shown = _actor(), shown_before()
    if actor is None:
        return None
    with suppress(RayError):  # dead, or busy: it is killed either way, and its process ends when it does
        ray.get(actor.stop.remote(), timeout=STOP_S + 2.0)
    with suppress(RayError):
        ray.kill(actor, no_restart=True)
    _internal_kv_del(_KEY, namespace=_SPACE)
    return shown


def _head() -> str:
    """The id of the head's node; of any, should none say that it is."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    found = next((node for node in nodes if HEAD in node["Resources"]), nodes[0])
    return str(found["NodeID"])


def environment(shown: Shown) -> dict[str, str]:
    """What gateways are told, besides the keys of their callers."""
    return {"CHAINS_VIEWER": shown.endpoint, "CHAINS_VIEWER_KEY": shown.key}
