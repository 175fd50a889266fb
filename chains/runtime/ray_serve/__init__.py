"""The chain on a Ray cluster: a Serve deployment for each chainlet, and hops that go past Serve, over the wire."""

from chains.runtime.ray_serve.application import application
from chains.runtime.ray_serve.attached import Attached
from chains.runtime.ray_serve.deploy import delete, deploy
from chains.runtime.ray_serve.plan import Plan, RaySettings
from chains.runtime.ray_serve.runtime import RayServe

__all__ = ["Attached", "Plan", "RayServe", "RaySettings", "application", "delete", "deploy"]
