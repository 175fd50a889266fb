"""`chains export kuberay`: the manifest that runs a chain on Kubernetes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from chains.cli.manifest import Export, text
from chains.dsl.graph import Graph, load
from chains.errors import SettingError
from chains.runtime.target import target_of


def kuberay(arguments: argparse.Namespace) -> int:
    """Write it to the file, or to stdout; what KubeRay cannot keep is said on stderr."""
    graph = load(arguments.chain)
    export = Export(
        name=arguments.name,
        image=arguments.image,
        target=arguments.target or target_of(graph),
        secret=arguments.secret,
        namespace=arguments.namespace,
        port=arguments.port,
        gateways=arguments.gateways,
        grace=arguments.grace,
        selectors=_selectors(arguments.gpu_label, graph),
        viewer=arguments.viewer.rstrip("/"),
    )
    written = text(graph, export)
    for note in notes(graph, export):
        print(f"note: {note}", file=sys.stderr)
    if not arguments.out:
        sys.stdout.write(written)
        return 0
    try:
        Path(arguments.out).write_text(written, encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"{arguments.out} cannot be written: {error.strerror}", mend="check its folder and rights"
        ) from None
    print(f"written to {arguments.out}", file=sys.stderr)
    return 0


def notes(graph: Graph, export: Export) -> list[str]:
    """What a manifest cannot say, or what somebody has to see to."""
    said = []
    if export.target.startswith("/"):
        said.append(f"the image must hold the chain as {export.target}; say --target for another place")
    for node in graph.nodes.values():
        placement, kind = node.spec.placement, node.spec.resources.gpu
        if placement.prefer == "pack" or placement.with_caller:
            said.append(
                f"{node.name}: pack and with_caller are wishes for nodes that are known only to `chains deploy`"
            )
        if kind and kind not in export.selectors:
            said.append(
                f"{node.name}: pods go to any node with a GPU; say --gpu-label {kind}=KEY=VALUE for those with {kind}"
            )
    if not export.viewer:
        said.append(
            "no tracing page is in it: run `chains view --host 0.0.0.0 --key KEY` where the pods reach it, and say "
            "--viewer URL; OTEL_EXPORTER_OTLP_ENDPOINT in the pods sends the same spans elsewhere"
        )
    return list(dict.fromkeys(said))


def _selectors(given: list[str], graph: Graph) -> dict[str, dict[str, str]]:
    kinds = list(dict.fromkeys(node.spec.resources.gpu for node in graph.nodes.values() if node.spec.resources.gpu))
    found = {}
    for one in given:
        kind, _, label = one.partition("=")
        key, equals, value = label.partition("=")
        if not (kind and key and equals and value):
            raise SettingError(
                f"--gpu-label {one} is no label",
                mend="write KIND=KEY=VALUE, e.g. L4=cloud.google.com/gke-accelerator=nvidia-l4",
            )
        if kind not in kinds:
            raise SettingError(
                f"--gpu-label {one} is of a kind of GPU that no chainlet of {graph.entry} asks for",
                mend=f"it asks for {', '.join(kinds)}" if kinds else 'leave it out, or write Resources(gpu="L4")',
            )
        found[kind] = {key: value}
    return found
