"""Bringing a chain onto a cluster and off it: what starts is shown, what fails is said in the chain's own words."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, LoggingConfig

from chains.dsl.graph import Graph, Node
from chains.errors import NotFound, SettingError, StartError
from chains.runtime.deployment import Progress, ProgressFn
from chains.runtime.ray_serve.application import built
from chains.runtime.ray_serve.book import Book
from chains.runtime.ray_serve.notes import Step, forget, forget_steps, read_steps, write_secrets
from chains.runtime.ray_serve.operate import applications, named, reason
from chains.runtime.ray_serve.plan import GATEWAY, Plan

KNOWN = 60.0
"""Seconds until a gateway that runs is in the book, at most."""
LOOK = 0.1
"""Seconds between looks at how far a deployment has come."""


def start_serve() -> None:
    """Serve's controller, where it does not run yet; without proxies: callers talk to the gateway itself."""
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="Disabled", logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False))


async def deploy(
    graph: Graph,
    plan: Plan,
    app: str,
    *,
    progress: ProgressFn | None = None,
    timeout: float | None = None,
    secrets: Mapping[str, str] | None = None,
) -> str:
    """Run the chain as the application `app`, or upgrade the one of that name without failing calls; return once all of
    it runs, with the URL of its gateway ("" without one). Ray is connected to already.
    `secrets` are environment variables for the chainlets that name them, and for the gateway; they take the place of
    those of the last deployment.

    Raises StartError with what a replica said of its failure. What had not run before is then taken away again; of what
    had, new replicas may stand beside old ones, and the former secrets hold again.
    """
    if plan.gateway and plan.door.get("port") == 0:
        plan = replace(plan, door={**plan.door, "port": _free_port(str(plan.door.get("host", "127.0.0.1")))})
    if timeout is not None and not 0.0 < timeout < math.inf:
        raise SettingError(
            f"timeout={timeout:g}", mend="write seconds above 0, or None to wait for as long as it takes"
        )
    plan = replace(plan, deployment=token_hex(8))
    target = built(graph, plan)
    return await _Deploying(graph, app, plan.deployment, progress, timeout).run(
        target, bool(plan.gateway), secrets or {}
    )


def _free_port(host: str) -> int:
    """One that is free here and now: several gateways are to share it, so none of them can draw it."""
    with socket.create_server((host, 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


async def delete(app: str) -> None:
    """Take the application away: its callers have the time to hang up, then nothing of it is left. A gateway that does
    not answer is not waited for any longer than its callers would have. Raises NotFound.
    """
    found = await asyncio.to_thread(applications)
    if app not in found:
        raise NotFound(f"no chain {app} runs here", mend=f"there are {', '.join(found) or 'none'}")
    gateway = found[app]["deployments"].get(GATEWAY)
    if gateway is not None:  # the chainlets stay until nobody talks to them any more
        with suppress(TimeoutError, RayError, RayServeException):  # one that died, or stands still: others have left
            async with asyncio.timeout(gateway["deployment_config"]["graceful_shutdown_timeout_s"]):
                await _left(app)
    await asyncio.to_thread(serve.delete, app)
    await asyncio.to_thread(forget, app)


async def _left(app: str) -> None:
    """Return once nobody is on the line of any gateway that can be asked."""
    await serve.get_deployment_handle(GATEWAY, app).broadcast("leave").results_async()


class _Deploying:
    """One deployment under way."""

    def __init__(
        self, graph: Graph, app: str, deployment: str, progress: ProgressFn | None, timeout: float | None
    ) -> None:
        self.graph = graph
        self.app = app
        self.deployment = deployment
        self.began = time.monotonic()
        self._progress = progress
        self._timeout = timeout
        self._told: dict[str, str] = {}

    async def run(self, target: serve.Application, gateway: bool, secrets: Mapping[str, str]) -> str:
        before = await asyncio.to_thread(self._status)
        await asyncio.to_thread(forget_steps, self.app)
        former = await asyncio.to_thread(write_secrets, self.app, secrets)
        submitting = asyncio.ensure_future(asyncio.to_thread(self._submit, target))
        try:
            await asyncio.shield(submitting)
            await self._running()
            return await self._url() if gateway else ""
        except BaseException as error:
            await asyncio.shield(asyncio.wait((submitting,)))  # a thread goes on: what it submits would stay otherwise
            if before is None:
                await asyncio.shield(delete_quietly(self.app))
            else:
                await asyncio.shield(asyncio.to_thread(write_secrets, self.app, former))
            told = error
            if isinstance(error, RayError | RayServeException):
                told = StartError(f"{self.app} was not deployed: {reason(str(error))}")
            if before is not None and isinstance(told, StartError):
                told = self._mixed(told)
            if told is error:
                raise
            raise told from error

    def _mixed(self, error: StartError) -> StartError:
        """What a failed upgrade leaves: Serve changes each chainlet by itself, and takes none of it back."""
        return StartError(
            f"{error}\n{self.app} now has new replicas of some chainlets beside old ones of others",
            mend="deploy its former file again to go back, or this one once it is mended",
        )

    def _submit(self, target: serve.Application) -> None:
        start_serve()
        run = serve.RunTarget(target=target, name=self.app, route_prefix=None)
        serve.run_many([run], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)

    def _status(self) -> Any:
        try:
            return serve.status().applications.get(self.app)
        except RayServeException:
            return None

    async def _running(self) -> None:
        """Return once everything runs; each step of each replica is told."""
        seen = False
        while True:
            steps, status = await asyncio.to_thread(self._look)
            if seen and status is None:
                raise StartError(f"{self.app} was taken away while it started", mend="deploy it again if it is wanted")
            seen = status is not None
            for step in steps:
                if self._told.get(step.replica) != step.stage:
                    self._told[step.replica] = step.stage
                    if self._progress is not None:
                        seconds = time.monotonic() - self.began
                        self._progress(Progress(step.node, step.replica, step.stage, seconds))
                if step.stage == "failed":
                    raise StartError(step.why, mend=step.mend)
            if status is not None and status.status == ApplicationStatus.RUNNING:
                return
            if status is not None and status.status == ApplicationStatus.DEPLOY_FAILED:
                raise StartError(f"{self.app} did not start: {_told_by(status)}")
            if self._timeout is not None and time.monotonic() - self.began > self._timeout:
                raise self._late(steps)
            await asyncio.sleep(LOOK)

    def _late(self, steps: list[Step]) -> StartError:
        """What was waited for all the time."""
        homeless = [node for name, node in self.graph.nodes.items() if name not in {step.node for step in steps}]
        if homeless:
            wants = ", ".join(f"{node.name} ({_wants(node)})" for node in homeless)
            return StartError(
                f"after {self._timeout:g} s the cluster has found no place for {wants}",
                mend="add nodes, or ask for less with Resources(...)",
            )
        slow = ", ".join(f"{step.replica} is {step.stage}" for step in steps if step.stage != "ready")
        return StartError(f"{self.app} does not run after {self._timeout:g} s: {slow or 'it is nearly there'}")

    def _look(self) -> tuple[Any, Any]:
        status = self._status()  # before the steps: what runs has told all of its steps
        return [step for step in read_steps(self.app) if step.deployment == self.deployment], status

    async def _url(self) -> str:
        """Where the gateway answers, as it says itself."""
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def told(_: str, listed: Any) -> None:
            for one in listed.values():
                if not found.done():
                    found.set_result(one.place.address)

        book = Book(self.app, [GATEWAY], told)
        try:
            return await asyncio.wait_for(found, KNOWN)
        except TimeoutError:
            raise StartError(
                f"{self.app} runs, and its gateway is not listed after {KNOWN:g} s", mend="look at `chains status`"
            ) from None
        finally:
            await book.close()


async def delete_quietly(app: str) -> None:
    """Take away what has not run yet."""
    try:
        await asyncio.to_thread(serve.delete, app)
        await asyncio.to_thread(forget, app)
    except (RayError, RayServeException):
        pass  # the cluster has gone, and the application with it


def _wants(node: Node) -> str:
    wanted = node.spec.resources
    gpus = f"{wanted.gpus:g} GPUs {wanted.gpu}".strip() if wanted.gpus else ""
    return ", ".join(filter(None, (f"{wanted.cpu:g} CPUs", gpus, wanted.memory and f"{wanted.memory} of memory")))


def _told_by(status: Any) -> str:
    """What Serve says is wrong, without its traces."""
    said = [named(name, reason(one.message)) for name, one in status.deployments.items() if one.message]
    return "; ".join(said) or reason(status.message) or status.status.lower()
