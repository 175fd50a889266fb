"""What can be wrong with a model that is put together here.

LayersError
`-- PrecisionUnknown    a precision that this model or this device cannot be run in
"""

from __future__ import annotations


class LayersError(ValueError):
    """The message says what was found and the mend."""


class PrecisionUnknown(LayersError):
    """A precision that is not known, or not for this model on this device."""
