"""From a kind to its adapter. The rows are in router.kinds: settings need the names, and import nothing from here."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import cast

from engines.adapter import Adapter
from engines.fetch import EngineHttp
from router.kinds import KINDS


def adapter_of(kind: str, http: EngineHttp) -> Adapter:
    """A fresh adapter; it may remember what its engine cannot do, so each worker has its own."""
    return cast(Callable[[EngineHttp], Adapter], resolve_name(KINDS[kind].adapter))(http)
