"""The credit of a plan's link: what predictions count, and what is solved does not."""

from __future__ import annotations

import math

from planner.encode import Encoding
from solvers.replay import Credit

__all__ = ["credit_of"]

_MOST_NS = 3_600_000_000_000
"""An hour of it is more than any plan spends."""


def credit_of(encoding: Encoding) -> Credit | None:
    """The link's credit in the replay's terms; None where the profile found none.

    Of a store with experts compressed and as they are both links must have one: it is one drive's.
    """
    link = encoding.link
    if link.burst is None or (encoding.raw and encoding.raw_copies.link.burst is None):
        return None
    rate = link.bandwidth_bytes_per_second.value
    depth_ns = min(int(link.burst.depth_bytes.value * 1e9 / rate), _MOST_NS)
    ratio = rate / link.burst.peak_bytes_per_second.value
    if not depth_ns or ratio >= 1:
        return None
    return Credit(depth_ns, max(math.ceil(ratio * 1_000_000), 1))
