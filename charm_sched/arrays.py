"""Names for array types in annotations, and ranges of positions expanded.

Importing it costs nothing: NumPy is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.integer[Any]]"
Floats: TypeAlias = "NDArray[np.float64]"
Bools: TypeAlias = "NDArray[np.bool_]"


def spans(first: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Expand ranges of positions.

    Args:
        first: First position of each range.
        lengths: How many positions each has.

    Returns:
        All positions, range after range, and the number of each one's range.
    """
    import numpy as np

    which = np.repeat(np.arange(len(lengths)), lengths)
    inner = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return first[which] + inner, which
