"""The language model engine: its rates, beside peers on the same machine.

On a CPU (the default) with the packaged model: decoding against transformers' generate and, where it is installed,
llama.cpp (pip install xllamacpp); the precisions; eight requests at once; the first token after a prefix hit.
On a GPU (--device cuda) with random FP8 weights of --config: decoding, prefill, many requests at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.llm.configs import CONFIGS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it runs, not what it costs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there, as a list of objects")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which sides are measured (default 0)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--config", default="", choices=["", *CONFIGS], help="shape with random weights")
    parser.add_argument("--model", default="default", help="on a CPU: the model's directory")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU: threads of each side (default 1)")
    found = parser.parse_args()
    if found.device != "cpu" or found.config:
        from benchmarks.llm.device import measure

        rows = measure(found.config or "moonlight", found.device, found.quick)
        if found.json is not None:
            found.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        return
    from benchmarks.llm.cpu import rows as rows_of
    from benchmarks.report import Options, report

    options = Options(found.quick, found.json, found.seed)
    report(rows_of(options, found.model, found.threads), found.json, "Language model engine on a CPU")


if __name__ == "__main__":
    main()
