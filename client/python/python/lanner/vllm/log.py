"""Where the connector's words go. vLLM shows what is logged below ``vllm``, and of others nothing but warnings."""

from __future__ import annotations

import logging

from ..limited import Limited as _Limited

logger = logging.getLogger("vllm.lanner")


class Limited(_Limited):
    """Warnings of one kind in vLLM's log."""

    def __init__(self) -> None:
        super().__init__(logger)
