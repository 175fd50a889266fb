"""`chains export kuberay` writes a manifest, and says what it cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from chains.cli.main import main

CHAIN = """
from chains import Placement, Resources, chainlet, depends

@chainlet(resources=Resources(gpu="L4"), placement=Placement(with_caller=True))
class Model:
    async def run(self, text: str) -> str: return text

@chainlet(entry=True)
class Front:
    model: Model = depends(Model)
    async def run(self, text: str) -> str: return text
"""


@pytest.fixture
def chain(tmp_path: Path) -> str:
    file = tmp_path / "front.py"
    file.write_text(CHAIN)
    return str(file)


def test_to_a_file_with_notes(chain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "service.yaml"
    assert main(["export", "kuberay", chain, "--name", "front", "--image", "i:1", "-o", str(out), "--port", "80"]) == 0
    service, door = yaml.safe_load_all(out.read_text())
    assert (service["kind"], door["kind"], door["spec"]["ports"][0]["port"]) == ("RayService", "Service", 80)
    said = capsys.readouterr().err
    assert "the image must hold the chain as" in said and "front.py:Front; say --target" in said
    assert "no tracing page is in it: run `chains view" in said
    assert "Model: pack and with_caller are wishes" in said and "--gpu-label L4=KEY=VALUE" in said


def test_to_stdout_without_notes_where_all_is_said(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["export", "kuberay", chain, "--name", "front", "--image", "i:1", "--target", "front:Front"]
    assert main([*line, "--gpu-label", "L4=cloud/gpu=l4", "--viewer", "http://viewer:8001/"]) == 0
    written = capsys.readouterr()
    service, _ = yaml.safe_load_all(written.out)
    group = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert group["template"]["spec"]["nodeSelector"] == {"cloud/gpu": "l4"}
    assert "chain: front:Front" in service["spec"]["serveConfigV2"]
    assert "value: http://viewer:8001\n" in written.out
    assert not any(option in written.err for option in ("--gpu-label", "--target", "tracing page"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--gpu-label", "L4"], "--gpu-label L4 is no label"),
        (["-o", "/no/such/folder/x.yaml"], "cannot be written"),
        (["--secret", "My Secret"], "no name of Kubernetes"),
        (["--gpu-label", "H1OO=a=b"], "no chainlet of Front asks for; it asks for L4"),
        (["--port", "6379"], "port 6379 is that of Ray's head; give the gateway another"),
        (["--image", ""], "image '' is no image"),
        (["--image", "a\nb: c"], "is no image; write e.g."),
        (["--target", "nope nope"], "target 'nope nope' is no chain; write package.module:Class"),
    ],
)
def test_what_makes_no_sense(more: list[str], says: str, chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "kuberay", chain, "--name", "front", "--image", "i", *more]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [["--grace", "nan"], ["--grace", "-1"], ["--port", "0"], ["--port", "99999"], ["--gateways", "0"]]
)
def test_numbers_that_make_no_sense(more: list[str], chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["export", "kuberay", chain, "--name", "front", "--image", "i", *more])
    assert left.value.code == 2 and f"argument {more[0]}: {more[1]} is" in capsys.readouterr().err
