"""GPUs by name, and what their memory holds: as nvidia-smi tells it, which is a little more than the name says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.llm.errors import SettingInvalid

MEBIBYTES = {
    "T4": 15360,
    "V100-16": 16384,
    "V100-32": 32768,
    "A10": 23028,
    "A100-40": 40960,
    "A100-80": 81920,
    "L4": 23034,
    "L40S": 46068,
    "RTX-3090": 24576,
    "RTX-4090": 24564,
    "RTX-5090": 32607,
    "RTX-6000-ADA": 49140,
    "H20": 97871,
    "H100": 81559,
    "GH200": 97871,
    "H200": 143771,
    "B200": 183359,
}
_ALIASES = {"A100": "A100-80", "V100": "V100-16", "A10G": "A10"}
_ALIASES |= {name.removeprefix("RTX-"): name for name in MEBIBYTES if name.startswith("RTX-")}
_WRITTEN = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (r"(?P<name>.+)", r"(?P<name>.+?)\s*[x*]\s*(?P<count>\d+)", r"(?P<count>\d+)\s*[x*]\s*(?P<name>.+)")
]
MOST = 1024


@dataclass(frozen=True, slots=True)
class Gpus:
    """`count` GPUs of one kind, which share a model out among them."""

    name: str
    count: int = 1

    @property
    def bytes(self) -> int:
        """Memory of one of them."""
        return MEBIBYTES[self.name] << 20

    def __str__(self) -> str:
        return f"{self.count} x {self.name}"

    @classmethod
    def read(cls, text: str) -> Gpus:
        """From "H100", "H100x8", "8xH100", "RTX 4090" or "A100-40"; raises SettingInvalid with the known names."""
        for pattern in _WRITTEN:
            found = pattern.fullmatch(text.strip())
            name = _known(found["name"]) if found else ""
            if found and name:
                break
        else:
            raise SettingInvalid(f"there is no GPU {text!r} in the list", mend=f"write one of {', '.join(MEBIBYTES)}")
        count = int(found.groupdict().get("count") or 1)
        if not 1 <= count <= MOST:
            raise SettingInvalid(f"{count} GPUs make no sense", mend="write a number of them, e.g. H100x8")
        return cls(name, count)


def _known(name: str) -> str:
    """The name as it stands in the list, whatever its capitals, dashes and GB; "" when it does not."""
    plain = re.sub(r"[\s_-]+", "", name.upper()).removesuffix("GB")
    plain = _ALIASES.get(plain, plain).replace("-", "")
    return next((known for known in MEBIBYTES if known.replace("-", "") == plain), "")
