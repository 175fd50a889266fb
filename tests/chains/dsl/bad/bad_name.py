# ruff: noqa
# mypy: ignore-errors
"""A name that is used before it stands."""

from chains.dsl.chainlet import chainlet, depends


@chainlet(entry=True)
class PhoneCall:
    ears = depends(Ears)
    #! cannot be imported (NameError: name 'Ears' is not defined); import Ears, or define it above this line
