"""Names that can't collide: a name space for everything that changes the bytes of a cache.

Two engines may share a server, and a key must not lead one of them to bytes that mean something else. So keys begin with a name space: the
digest of all facts that the bytes depend on. Which facts those are is the connector's part (model, revision, dtype, layout, page size, rank
and number of ranks, format); this module makes a digest of them that depends on nothing else, and leaves a description in the store.

A key is ``NAMESPACE/{PAGE}PIECE``. What is in braces is the placement tag: all pieces of a page lie on one shard.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import Any

from . import _lanner, errors
from .patient import PatientClient

#: Changed whenever keys or values are laid out otherwise, so that old objects aren't found.
FORMAT = 1
#: Below it each name space describes itself, for people: ``lanner ls lanner:namespace:`` and ``lanner get``.
DESCRIPTIONS = "lanner:namespace:"
#: Keys that are removed at a time.
_AT_ONCE = 4096


@dataclass(frozen=True)
class Namespace:
    """``facts`` are strings, numbers, truth values, ``None``, and lists and dictionaries of these."""

    engine: str
    facts: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def description(self) -> str:
        """All facts as JSON, always in the same form."""
        everything = {"engine": self.engine, "format": FORMAT, **self.facts}
        return json.dumps(everything, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)

    @functools.cached_property
    def prefix(self) -> str:
        """The engine's name and 128 bits of the facts' SHA-256."""
        return f"{self.engine}:{hashlib.sha256(self.description.encode()).hexdigest()[:32]}"

    def key(self, page: str, piece: str = "") -> str:
        """The key of a piece of a page. ``ValueError`` if the page's name would cut the placement tag short."""
        if not page or "}" in page or "{" in page:
            raise ValueError(f"'{page}' can't be the name of a page: it's empty or has braces")
        return f"{self.prefix}/{{{page}}}{piece}"

    def announce(self, client: _lanner.Client | PatientClient, logger: logging.Logger) -> None:
        """Logs the name space where the engine shows it, and leaves its description in the store. A store that can't take it is no failure."""
        logger.info("name space %s: %s", self.prefix, self.description)
        if isinstance(client, PatientClient):
            if not client.is_connected:
                logger.warning("no server at %s yet: the cache is empty until there is", client.url)
            client.when_connected(lambda client: self._describe(client, logger))
        else:
            self._describe(client, logger)

    def _describe(self, client: _lanner.Client, logger: logging.Logger) -> None:
        try:
            client.upsert(DESCRIPTIONS + self.prefix, self.description.encode(), pin="soft")
        except errors.LannerError as error:
            logger.warning("the name space's description wasn't stored: %s", error)

    def clear(self, client: _lanner.Client) -> int:
        """Removes all objects of the name space, also those of chains; how many. Lists all keys that begin with a placement tag."""
        removed = 0
        while keys := [key for key, _ in client.list(self.prefix + "/", limit=_AT_ONCE)]:
            now = sum(client.remove_batch(keys))
            removed += now
            if now == 0:
                break
        mine = self.prefix.encode() + b"/"
        blocks = [key for key, _ in client.list("{") if key[key.find(b"}") + 1 :].startswith(mine)]
        return removed + sum(sum(client.remove_batch(blocks[at : at + _AT_ONCE])) for at in range(0, len(blocks), _AT_ONCE))


def distinct(extra: dict[str, Any]) -> dict[str, Any]:
    """What users say of a model beside what its engine says, as facts."""
    return {name: extra.get(name) for name in ("revision", "weights_digest", "tag")}


def digest_of_config(config: Any) -> str:
    """A digest of whatever JSON can say of ``config`` (a dictionary, or an object's ``to_dict()``); what it can't say goes in by its type."""
    plain = config.to_dict() if hasattr(config, "to_dict") else config
    text = json.dumps(plain, sort_keys=True, default=lambda value: f"{type(value).__module__}.{type(value).__qualname__}")
    return hashlib.sha256(text.encode()).hexdigest()[:32]
