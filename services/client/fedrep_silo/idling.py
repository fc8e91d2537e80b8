"""Between runs a silo holds no more of its machine than it must.

Nothing here imports torch: a silo whose trainer does without it must do without it here too.
"""

from __future__ import annotations

import gc
import sys


def let_go_of_devices() -> None:
    """Gives the memory of a trainer that nobody refers to any more back to its GPU.

    What the driver keeps for the process, its context, is free only when the process ends.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
