"""What DeepSeek's families share: latent attention and a router in float32."""

from __future__ import annotations

from typing import ClassVar

from executor.adapters.base import Adapter, CacheShape

__all__ = ["LatentAdapter"]


class LatentAdapter(Adapter):
    """Keeps of a token one latent vector and one rotary key, as transformers' modules hand them to
    the cache (arXiv 2405.04434, section 2.1); keys and values of all heads are made of them anew
    in every pass."""

    float32_router: ClassVar[bool] = True

    def check_config(self) -> None:
        """The account of memory bounds a value's size by a key's."""
        config = self.config
        if config.v_head_dim > config.qk_head_dim:
            raise self.refuse(
                f"v_head_dim {config.v_head_dim} above the {config.qk_head_dim} of a key is not "
                "supported"
            )

    def cache_shape(self) -> CacheShape:
        """The latent, and the rotary key."""
        return CacheShape(1, self.config.kv_lora_rank, 1, self.config.qk_rope_head_dim)
