"""The commands for a chain on a cluster: `chains deploy`, `status`, `logs`, `scale`, `delete`, `down`, `export`.

Here are their arguments; what they do is imported when one is called.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from chains.cli.values import any_port, count, grace, port, seconds, some
from chains.cli.view import add_view_options

CHAIN = "call.py, call.py:PhoneCall or package.module:PhoneCall"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_deploy(commands)
    status = commands.add_parser("status", help="what runs on the cluster and how it fares; exit code 1 if not well")
    status.add_argument("name", nargs="?", default="", metavar="NAME", help="one chain (default: all)")
    status.add_argument("--json", action="store_true", help="the same as JSON")
    _common(status, "chains.cli.status:status")
    logs = commands.add_parser("logs", help="what a chain's replicas wrote, also of those that are dead")
    logs.add_argument("name", metavar="NAME")
    logs.add_argument("chainlet", nargs="?", default="", metavar="CHAINLET", help="one of them (default: all)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    logs.add_argument("-n", "--lines", type=count, default=100, metavar="N", help="of each replica the last N (100)")
    _common(logs, "chains.cli.status:logs")
    scale = commands.add_parser("scale", help="give chainlets another number of replicas, without restarting any")
    scale.add_argument("name", metavar="NAME")
    scale.add_argument("counts", nargs="+", metavar="CHAINLET=N", help="3 fixes it, 1-8 lets it scale between those")
    _common(scale, "chains.cli.deploy:scale")
    delete = commands.add_parser("delete", help="take a chain off the cluster; its callers have the time to hang up")
    delete.add_argument("name", metavar="NAME")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    _common(delete, "chains.cli.deploy:delete")
    down = commands.add_parser("down", help="end the cluster that `chains deploy` has started on this machine")
    down.add_argument("--yes", action="store_true", help="do not ask")
    down.add_argument("--debug", action="store_true", help="show the traceback of an error")
    down.set_defaults(command=_later("chains.cli.deploy:down"))
    _add_export(commands)


def _add_deploy(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    deploy = commands.add_parser(
        "deploy",
        help="run a chain on a Ray cluster, or upgrade it there; one is started on this machine if there is none",
    )
    deploy.add_argument("chain", metavar="FILE[:CHAIN]", help=CHAIN)
    deploy.add_argument("--name", default="", help="what the deployment is called (default: as the chain)")
    deploy.add_argument("--profile", choices=("production", "laptop"), help="resources as written, or as there are")
    deploy.add_argument(
        "--replicas", action="append", default=[], metavar="CHAINLET=N", help="fix a number; repeatable"
    )
    deploy.add_argument("--gateways", type=some, default=1, metavar="N", help="replicas of the gateway (default 1)")
    deploy.add_argument(
        "--host", default="", help="interface of the gateway (default: this machine alone, or the node's)"
    )
    deploy.add_argument(
        "--port", type=any_port, default=8000, help="its port on each node (default 8000); 0 takes a free one"
    )
    deploy.add_argument("--key", action="append", default=[], help="a bearer key callers must show; may be repeated")
    deploy.add_argument("--insecure", action="store_true", help="listen for other machines without a key")
    deploy.add_argument("--origin", action="append", default=[], help="a web page's origin that may call; repeatable")
    deploy.add_argument("--ship", default="", metavar="FOLDER", help="send this folder, with FILE in it, to all nodes")
    deploy.add_argument(
        "--grace", type=grace, default=30.0, metavar="S", help="what a replica's calls have to end (30)"
    )
    deploy.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="give up after so long (600)")
    add_view_options(deploy)
    _common(deploy, "chains.cli.deploy:deploy")


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = commands.add_parser("export", help="write what deploys a chain elsewhere")
    kinds = export.add_subparsers(metavar="KIND", required=True)
    kuberay = kinds.add_parser("kuberay", help="a RayService for the KubeRay operator on Kubernetes")
    kuberay.add_argument("chain", metavar="FILE[:CHAIN]", help="as it is called in the image, and found from here")
    kuberay.add_argument("--name", required=True, help="of the RayService")
    kuberay.add_argument("--image", required=True, help="with Python, chains-serve[ray] and the chain")
    kuberay.add_argument("-o", "--out", default="", metavar="FILE", help="default: stdout")
    kuberay.add_argument("--namespace", default="", help="of Kubernetes")
    kuberay.add_argument(
        "--secret", default="", metavar="NAME", help="of the Secret with the keys (default NAME-secrets)"
    )
    kuberay.add_argument("--port", type=port, default=8000, help="of the gateway (default 8000)")
    kuberay.add_argument("--gateways", type=some, default=1, metavar="N", help="replicas of the gateway (default 1)")
    kuberay.add_argument(
        "--grace", type=grace, default=30.0, metavar="S", help="what a replica's calls have to end (30)"
    )
    kuberay.add_argument("--target", default="", metavar="CHAIN", help="what the chain is called in the image")
    kuberay.add_argument(
        "--gpu-label", action="append", default=[], metavar="KIND=KEY=VALUE", help="of nodes with a GPU"
    )
    kuberay.add_argument("--viewer", default="", metavar="URL", help="of the viewer that pods send spans to")
    kuberay.add_argument("--debug", action="store_true", help="show the traceback of an error")
    kuberay.set_defaults(command=_later("chains.cli.export:kuberay"))


def _common(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument("--address", default="", help="HOST:PORT or ray://HOST:10001 (default: $RAY_ADDRESS, or here)")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(command=_later(command))


def _later(command: str) -> Callable[[argparse.Namespace], int]:
    module, _, name = command.partition(":")

    def run(arguments: argparse.Namespace) -> int:
        code: int = getattr(import_module(module), name)(arguments)
        return code

    return run
