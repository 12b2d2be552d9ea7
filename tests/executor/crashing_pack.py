"""Packs a checkpoint and kills itself at its n-th fsync: a program that tests of packing run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from executor import pack, writing

writing._BATCH_BYTES = 40_000
checkpoint, store, syncs, compress = sys.argv[1:]
left = int(syncs)
fsync = os.fsync


def fsync_or_die(descriptor: int) -> None:
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)


how: Any = compress
os.fsync = fsync_or_die  # type: ignore[assignment]
pack(Path(checkpoint), Path(store), compress=how)
