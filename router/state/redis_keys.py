"""Names of what is kept in Redis.

Workers are spread over lanes. All keys of a lane have the same hash tag: one node of a cluster holds them, so that one
command reads many workers, where a tag per worker would take one for each; lanes spread over the nodes.

    warmline:VERSION:POOL:{LANE}:report:WORKER      the newest report
    warmline:VERSION:POOL:{LANE}:stream:WORKER      deltas, each under the id EPOCH-SEQ
    warmline:VERSION:POOL:{LANE}:snapshot:WORKER    list of pieces; built as new-snapshot, then renamed
    warmline:VERSION:POOL:{LANE}:probe              written to see that writing works
    warmline:VERSION:POOL:{0}:workers               sorted set of workers by the time they were announced last
    warmline:VERSION:POOL:{0}:load                  channel of the routers' loads

ACL rules of a user for one pool: ~warmline:1:POOL:* &warmline:1:POOL:* and the commands that `COMMANDS` names.
"""

from typing import Final
from zlib import crc32

from router.core.types import WorkerId
from router.state.frame import VERSION

LANES: Final = 16
COMMANDS: Final = (
    *("mget", "set", "xadd", "xread", "xrevrange", "unlink", "rpush", "rename", "pexpire", "lrange"),
    *("zadd", "zrem", "zrevrange", "publish", "subscribe", "ping", "select", "cluster|slots"),
)


def lane_of(worker: WorkerId) -> int:
    return crc32(worker.encode(errors="replace")) % LANES


class Keys:
    """Keys of one pool."""

    def __init__(self, pool: str) -> None:
        self._lanes = [f"warmline:{VERSION}:{pool}:{{{lane}}}:" for lane in range(LANES)]
        self.workers = f"{self._lanes[0]}workers"
        self.load = f"{self._lanes[0]}load"

    def probe(self, lane: int) -> str:
        return f"{self._lanes[lane]}probe"

    def tag(self, lane: int) -> str:
        """Any key of the lane, to find its slot by."""
        return self._lanes[lane]

    def of(self, worker: WorkerId) -> "WorkerKeys":
        return WorkerKeys(self._lanes[lane_of(worker)], worker)


class WorkerKeys:
    __slots__ = ("new_snapshot", "report", "snapshot", "stream")

    def __init__(self, prefix: str, worker: WorkerId) -> None:
        self.report = f"{prefix}report:{worker}".encode()
        self.stream = f"{prefix}stream:{worker}".encode()
        self.snapshot = f"{prefix}snapshot:{worker}".encode()
        self.new_snapshot = f"{prefix}new-snapshot:{worker}".encode()
