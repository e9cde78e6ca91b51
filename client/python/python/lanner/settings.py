"""What the client and the connectors have in common."""

from __future__ import annotations

#: Where a server listens that was told nothing.
DEFAULT_URL = "lanner://127.0.0.1:7411"
#: Blocks of the longest chain (``lanner_shared::chain::MAX_CHAIN_BLOCKS``).
MAX_CHAIN_BLOCKS = 4096
