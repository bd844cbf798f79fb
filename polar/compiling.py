"""How loops over arrays are compiled.

Compiled code and its cache are numba's: the first call of a kernel compiles it for the machine at hand (seconds) and
keeps the result beside the source, or in the user's cache folder where that cannot be written.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile with numba: cached, without the interpreter's lock, with IEEE arithmetic in the source's order."""
    return cast(Kernel, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
