"""Chains: multi-model workflows as plain Python classes, streaming on every hop.

The public names and nothing else. Each is loaded when it is first asked for: `import chains` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "Audio",
    "Text",
    "Tokens",
    "Tensor",
    "Control",
    "chainlet",
    "depends",
    "method",
    "remote",
    "Model",
    "Resources",
    "Autoscaling",
    "CallOptions",
    "Limits",
    "Batching",
    "Placement",
    "Environment",
    "current",
    "errors",
]

if TYPE_CHECKING:
    from chains import errors
    from chains.call import current
    from chains.dsl.chainlet import Model, chainlet, depends, method, remote
    from chains.dsl.specs import Autoscaling, Batching, CallOptions, Environment, Limits, Placement, Resources
    from chains.messages import Audio, Control, Tensor, Text, Tokens
else:
    # The same list for run time: which module has which names.
    _MODULES = {
        "chains.messages": ("Audio", "Text", "Tokens", "Tensor", "Control"),
        "chains.dsl.chainlet": ("chainlet", "depends", "method", "remote", "Model"),
        "chains.dsl.specs": (
            "Resources",
            "Autoscaling",
            "CallOptions",
            "Limits",
            "Batching",
            "Placement",
            "Environment",
        ),
        "chains.call": ("current",),
    }

    def __getattr__(name: str) -> object:
        if name == "errors":
            return import_module("chains.errors")
        for module, names in _MODULES.items():
            if name in names:
                value = getattr(import_module(module), name)
                globals()[name] = value  # the next look-up finds it without coming here
                return value
        raise AttributeError(f"module 'chains' has no attribute {name!r}; its names are {', '.join(__all__)}")

    def __dir__() -> list[str]:
        return sorted(__all__)
