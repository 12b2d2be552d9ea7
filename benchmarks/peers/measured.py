"""What every engine of the benchmark tells of its run. The standard library only: engines that
come with an environment of their own use it, too."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

__all__ = ["bytes_read", "options", "tell"]


def options(description: str | None) -> argparse.ArgumentParser:
    """What every engine is asked."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True, help="JSON: lists of token ids")
    parser.add_argument("--new-tokens", type=int, required=True, help="for each prompt")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    return parser


def bytes_read() -> int:
    """Bytes that this process has had read from disks so far, page faults included."""
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


def tell(
    out: Path,
    tokens: list[list[int]],
    *,
    load_seconds: float,
    prefill_seconds: float,
    decode_seconds: float,
    read: int,
    **more: Any,
) -> None:
    """Write a run's document: new tokens of each prompt, times, bytes read meanwhile."""
    document = {
        "tokens": tokens,
        "load_seconds": load_seconds,
        "prefill_seconds": prefill_seconds,
        "decode_seconds": decode_seconds,
        "bytes_read": read,
        **more,
    }
    out.write_text(json.dumps(document), encoding="utf-8")
