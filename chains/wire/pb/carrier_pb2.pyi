# Written by hand: the messages' classes are made when the module loads, and their fields are for protobuf to check.
from typing import Any

def __getattr__(name: str) -> Any: ...
