"""Makes recordings of questions.json anew, all or those named: python tests/e2e/questions/make.py [01.flac ...]

The voice is that of the example's caller (examples/phone_call/lines/README.md says which, and its licence).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import soundfile

from examples.phone_call.lines.make import RATE, Caller

HERE = Path(__file__).parent
QUIET = 10 ** (-40 / 20)


def main(names: list[str]) -> None:
    caller = Caller()
    path = HERE / "questions.json"
    lines = json.loads(path.read_text())["lines"]
    for line in lines:
        if names and line["file"] not in names:
            continue
        samples = caller.say(line["text"])
        line["speech_ends_ms"] = int(np.flatnonzero(np.abs(samples) > QUIET)[-1] * 1000 / RATE)
        soundfile.write(HERE / line["file"], samples, RATE, subtype="PCM_16")
        print(f"{line['file']} {line['speech_ends_ms']:5} ms  {line['text']}")
    rows = ",\n".join(f"    {json.dumps(line)}" for line in lines)
    path.write_text(f'{{\n  "lines": [\n{rows}\n  ]\n}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
