"""From an entry class, or a file, to the graph of its chain; or to all of its faults at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chains.dsl import loading, source
from chains.dsl.chainlet import ChainletSpec, Dependency, is_chainlet, spec_of
from chains.dsl.nodes import Edge, Graph, Node
from chains.dsl.plan import Plan, fallback_faults, plan, use_faults
from chains.errors import Fault, GraphError

__all__ = ["Edge", "Graph", "Node", "build", "load"]


def build(entry: type) -> Graph:
    """The graph of the chain that begins at `entry`. Raises GraphError with every fault of it."""
    building = _Building()
    name = building.root(entry)
    if building.faults or name is None:
        raise GraphError(_ordered(building.faults), chain=getattr(entry, "__name__", str(entry)))
    return Graph(name, building.nodes)


def load(target: str) -> Graph:
    """The graph of "call.py", "call.py:PhoneCall" or "package.module:Class".

    Raises GraphError for a file that is missing, does not run, or whose chain has faults.
    """
    module, wanted = loading.module_of(target)
    chainlets = {name: cls for name, cls in vars(module).items() if is_chainlet(cls)}
    if wanted:
        if wanted not in chainlets:
            raise GraphError([loading.no_such_class(module, target, wanted, tuple(chainlets))], chain=wanted)
        return build(chainlets[wanted])
    own = list(dict.fromkeys(cls for cls in chainlets.values() if cls.__module__ == module.__name__))
    entries = [cls for cls in own if spec_of(cls).entry]
    if len(entries) == 1:
        return build(entries[0])
    building = _Building()
    for cls in entries or own:
        building.root(cls)
    raise GraphError(_ordered([*_entry_faults(module, target, own, entries), *building.faults]), chain=target)


def _entry_faults(module: Any, target: str, own: list[type], entries: list[type]) -> list[Fault]:
    file = source.shown(str(module.__file__))
    if not own:
        return [
            Fault(
                f"{file}:1",
                "holds no chainlet",
                "write @chainlet(entry=True) above the class that callers talk to",
            )
        ]
    if not entries:
        names = ", ".join(cls.__name__ for cls in own)
        last = source.ClassSource.of(own[-1])
        mend = f"write @chainlet(entry=True) above one of {names}, or name it: {target}:{own[-1].__name__}"
        return [Fault(f"{last.where} ({own[-1].__name__})", "no chainlet of this file is the entry", mend)]
    found = f"is one of {len(entries)} entries of this file"
    return [
        Fault(
            f"{source.ClassSource.of(cls).where} ({cls.__name__})",
            found,
            f"leave entry=True on one, or name it: {target}:{cls.__name__}",
        )
        for cls in entries
    ]


def _ordered(faults: list[Fault]) -> list[Fault]:
    """Each fault once, those of one file together and by line."""
    unique = list(dict.fromkeys(faults))
    files: dict[str, int] = {}

    def place(fault: Fault) -> tuple[int, int]:
        file, _, line = fault.where.split(" ")[0].rpartition(":")
        return files.setdefault(file, len(files)), int(line) if line.isdecimal() else 0

    return sorted(unique, key=place)


@dataclass
class _Building:
    """Goes through the dependencies, deepest first, and gives each distinct use of a class its node."""

    nodes: dict[str, Node] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    _plans: dict[type, Plan] = field(default_factory=dict)
    _path: list[type] = field(default_factory=list)

    def root(self, entry: type) -> str | None:
        if not is_chainlet(entry):
            self.faults.append(_not_a_chainlet(entry))
            return None
        made = self._plan(entry)
        for name in made.required():
            found = f"needs `{name}`, and nobody gives an entry its arguments"
            self.faults.append(
                Fault(
                    f"{made.init_where} ({made.spec.name}.__init__)",
                    found,
                    f"write {name} = ... with a default",
                )
            )
        if made.spec.placement.with_caller:
            where = f"{made.lines.where} ({made.spec.name})"
            self.faults.append(
                Fault(where, "is the entry, which no chainlet calls, and has with_caller=True", "leave it out")
            )
        return self._node(made, made.spec, {}, "")

    def _plan(self, cls: type) -> Plan:
        if cls not in self._plans:
            self._plans[cls] = made = plan(cls)
            self.faults += made.faults
            for meant in made.lacking.values():
                self._plan(meant)  # nobody depends on it yet, but its faults are faults of this chain
        return self._plans[cls]

    def _node(self, made: Plan, spec: ChainletSpec, arguments: dict[str, Any], attribute: str) -> str:
        """The name of the node for this use: that of one just like it, or a new one's."""
        self._path.append(made.cls)
        edges: dict[str, Edge] = {}
        given = {name: value for name, value in arguments.items() if isinstance(value, Dependency)}
        for name, dependency in {**made.attributes, **made.inits, **given}.items():
            if name in arguments and name not in given:
                continue  # a plain value stands in for the dependency; use_faults has said so
            via = "attribute" if name in made.attributes and name not in given else "init"
            target = self._use(made, name, dependency)
            if target is not None:
                edges[name] = Edge(name, target, dependency.options, via)
                self._fallback(made, dependency, edges, name)
        self._path.pop()
        plain = {name: value for name, value in arguments.items() if name not in given}
        for node in self.nodes.values():
            if node.cls is made.cls and _alike(node, spec, _filled(made, plain), _filled(made, node.arguments), edges):
                return node.name
        name = self._name(made, attribute)
        self.nodes[name] = Node(name, made.cls, spec, plain, edges, made.methods)
        return name

    def _use(self, parent: Plan, attribute: str, dependency: Dependency) -> str | None:
        where = f"{dependency.where} ({parent.spec.name}.{attribute})"
        self.faults += [Fault(where, found, write) for found, write in dependency.faults]
        if not is_chainlet(dependency.cls):
            self.faults.append(_bad_dependency(where, dependency.cls))
            return None
        if dependency.cls in self._path:
            loop = " -> ".join(
                cls.__name__ for cls in [*self._path[self._path.index(dependency.cls) :], dependency.cls]
            )
            self.faults.append(
                Fault(
                    where,
                    f"closes a circle: {loop}",
                    "take one of these dependencies out; pass the answer as an argument",
                )
            )
            return None
        used = self._plan(dependency.cls)
        self.faults += use_faults(parent, attribute, dependency, used)
        own = used.spec
        spec = replace(
            own,
            resources=dependency.resources or own.resources,
            scaling=dependency.scaling or own.scaling,
            limits=dependency.limits or own.limits,
            placement=dependency.placement or own.placement,
            environment=dependency.environment or own.environment,
        )
        return self._node(used, spec, dependency.arguments, attribute)

    def _fallback(self, parent: Plan, dependency: Dependency, edges: dict[str, Edge], name: str) -> None:
        """An edge of its own for the chainlet that answers instead."""
        spare, attribute = dependency.fallback, f"{name}.fallback"
        target = None if spare is None else self._use(parent, attribute, spare)
        if spare is None or target is None:
            return
        where = f"{spare.where} ({parent.spec.name}.{attribute})"
        if target == edges[name].target:
            self.faults.append(Fault(where, f"falls back on {target} itself", "name another chainlet, or leave it out"))
        self.faults += fallback_faults(where, self._plan(dependency.cls), self._plan(spare.cls))
        edges[attribute] = Edge(attribute, target, spare.options, "fallback")
        self._fallback(parent, spare, edges, attribute)

    def _name(self, made: Plan, attribute: str) -> str:
        first = self.nodes.get(made.spec.name)
        if first is None:
            return made.spec.name
        if first.cls is not made.cls:
            other = self._plans[first.cls]
            found = f"is called {made.spec.name}, like the chainlet at {other.lines.where}"
            mend = f'write @chainlet(name="{made.cls.__name__}2")'
            self.faults.append(Fault(f"{made.lines.where} ({made.spec.name})", found, mend))
        name = wanted = f"{made.spec.name}.{attribute}" if attribute else made.spec.name
        number = 2
        while name in self.nodes:
            name, number = f"{wanted}{number}", number + 1
        return name


def _filled(made: Plan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's arguments with its defaults, so that saying a default aloud makes no other node."""
    defaults = {
        name: one.default
        for name, one in made.params.items()
        if one.default is not one.empty and not isinstance(one.default, Dependency)
    }
    return {**defaults, **arguments}


def _alike(
    node: Node, spec: ChainletSpec, mine: dict[str, Any], theirs: dict[str, Any], edges: dict[str, Edge]
) -> bool:
    return _settings(node.spec) == _settings(spec) and node.edges == edges and _same(mine, theirs)


def _settings(spec: ChainletSpec) -> tuple[object, ...]:
    return spec.resources, spec.scaling, spec.limits, spec.placement, spec.environment


def _same(one: Any, other: Any) -> bool:
    """Equal, and of equal types all the way down (1 is not True)."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other)
    except Exception:  # arrays and other things without a plain answer
        return False


def _not_a_chainlet(entry: object) -> Fault:
    if not isinstance(entry, type):
        return Fault("build()", f"was given {entry!r:.60}, which is no class", "give it the entry's class")
    lines = source.ClassSource.of(entry)
    return Fault(
        f"{lines.where} ({entry.__name__})",
        "is no chainlet",
        f"write @chainlet(entry=True) above class {entry.__name__}",
    )


def _bad_dependency(where: str, cls: object) -> Fault:
    if isinstance(cls, type):
        place = source.ClassSource.of(cls).where
        return Fault(
            where,
            f"depends on {cls.__name__}, which is no chainlet",
            f"write @chainlet above class {cls.__name__} ({place})",
        )
    if isinstance(cls, str) and cls.isidentifier():
        mend = f"write depends({cls}), below class {cls}: a class must stand above those that depend on it"
        return Fault(where, f"depends on {cls!r:.60}, which is no class", mend)
    return Fault(where, f"depends on {cls!r:.60}, which is no class", "write depends(Class)")
