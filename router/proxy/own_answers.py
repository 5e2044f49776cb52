"""What the router answers on the data port by itself: health for load balancers, and the models of the whole fleet."""

from urllib.parse import unquote

from router.core.fleet import Fleet
from router.core.types import Lifecycle
from router.errors import MethodNotAllowed, ModelNotFound, NoWorker, ShuttingDown
from router.proxy.routes import HEALTH, MODELS
from router.wire.openai_error import model_body, models_list


def own_answer(method: bytes, route: str, path: str, fleet: Fleet, draining: bool) -> bytes:
    """The JSON body of a 200 answer to GET /health, /v1/models or /v1/models/{id}. Raises RouterError for any other status."""
    if method not in (b"GET", b"HEAD"):
        raise MethodNotAllowed(f"{route} takes GET only")
    if route == HEALTH:
        if draining:
            raise ShuttingDown("the router is shutting down")
        if not any(worker.lifecycle is Lifecycle.READY for worker in fleet.workers):
            raise NoWorker("no worker is ready")
        return b'{"status":"ok"}'
    models = fleet.models()
    name = unquote(path[len(MODELS) + 1 :])  # clients send org/name as org%2Fname
    if not name:
        return models_list(models)
    if name not in models:
        raise ModelNotFound(f"no worker serves model {name!r}", param="model")
    return model_body(name)
