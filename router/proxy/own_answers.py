"""What the router answers on the data port by itself: health for load balancers, and the models of the whole fleet."""

from urllib.parse import unquote

from router.core.fleet import Fleet
from router.core.types import Lifecycle
from router.errors import MethodNotAllowed, ModelNotFound, NoWorker, ShuttingDown
from router.proxy.routes import HEALTH, KSERVE_LIVE, KSERVE_MODEL_READY, MODELS
from router.wire.openai_error import model_body, models_list


def own_answer(method: bytes, route: str, path: str, fleet: Fleet, draining: bool) -> bytes:
    """The JSON body of a 200 answer to GET /health, /v1/models or /v1/models/{id}, or their like in KServe's API.

    Raises RouterError for any other status.
    """
    if method not in (b"GET", b"HEAD"):
        raise MethodNotAllowed(f"{route} takes GET only")
    if route == HEALTH:
        if path == KSERVE_LIVE:
            return b"{}"
        if draining:
            raise ShuttingDown("the router is shutting down")
        if not any(worker.lifecycle is Lifecycle.READY for worker in fleet.workers):
            raise NoWorker("no worker is ready")
        return b'{"status":"ok"}'
    kserve = KSERVE_MODEL_READY.fullmatch(path)
    if kserve is not None:
        fleet.candidates(kserve[1])
        return b"{}"
    models = fleet.models()
    name = unquote(path[len(MODELS) + 1 :])  # clients send org/name as org%2Fname
    if not name:
        return models_list(models)
    if name not in models:
        raise ModelNotFound(f"no worker serves model {name!r}", param="model")
    return model_body(name)
