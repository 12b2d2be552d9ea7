"""Klotski's choice of the number of batches (arXiv 2502.06888, section 6)."""

from __future__ import annotations

import numpy as np

from planner.documents import Workload
from planner.encode import Encoding
from planner.profiles import Profile
from planner.routing import popularity
from planner.scenarios import PassShape

__all__ = ["klotski_batches"]


def klotski_batches(profile: Profile, workload: Workload, batch_size: int) -> int | None:
    """The smallest n that hides all copies of a decode pass, by the paper's four inequalities.

    With t for compute, c for copy, A attention of one batch, G router, E one expert, H the K hot
    experts' compute and Q the other activated experts::

        n tA >= cG
        n (tA + tG) >= cG + K cE
        n (tA + tG) + tH >= cG + (K + 1) cE
        n (tA + tG) + tH + sum over Q of tE >= cG + (K + |Q|) cE + cA

    Tokens fall on experts by their popularity (each rank's mean over the layers); contexts are in
    the middle of decoding. Memory is not looked at. Of an encoder-decoder it is the decoder's n.

    Returns
    -------
    int or None
        None where no n up to all requests satisfies them.
    """
    model = profile.model
    layer = next(layer for layer in model.layers[model.encoder_depth :] if layer.experts)
    context = workload.prompt_tokens + 1 + workload.new_tokens // 2
    encoding = Encoding(profile, workload, 1, batch_size, 0, 4 << 20)
    shape = PassShape("decode", 0, batch_size, context, 1)
    attention = sum(
        step[3]
        for step in encoding.lead(shape, layer.index, 1.0).steps
        if step[0] in ("attention", "cross_attention")
    )
    router = profile.costs.curves["router"](batch_size)
    expert = profile.costs.curves["expert"]
    copy_router = encoding.copy_ns(layer.router_bytes, kind="dense")
    copy_attention = encoding.copy_ns(layer.attention_bytes + layer.norm_bytes, kind="dense")
    copy_expert = encoding.copy_ns(layer.expert_bytes)
    top_k = layer.top_k
    decoded = popularity(profile.arrays, layer.experts)[profile.arrays.encoder :]
    shares = -np.sort(-decoded, axis=1).mean(axis=0) * top_k
    for batches in range(1, -(-workload.requests // batch_size) + 1):
        tokens = batches * batch_size
        hot = sum(expert(max(round(tokens * share), 1)) for share in shares[:top_k])
        others = [round(tokens * share) for share in shares[top_k:]]
        active = [count for count in others if count]
        lead = batches * (attention + router)
        ahead = copy_router + top_k * copy_expert
        if (
            batches * attention >= copy_router
            and lead >= ahead
            and lead + hot >= ahead + copy_expert
            and lead + hot + sum(map(expert, active))
            >= ahead + len(active) * copy_expert + copy_attention
        ):
            return batches
    return None
