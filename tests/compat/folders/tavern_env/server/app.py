import inspect

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import HealthResponse, HealthStatus
from server.tavern import Order, Served, TavernEnvironment

options = {}
if "gradio_builder" in inspect.signature(create_app).parameters:
    options["gradio_builder"] = None
inner = create_app(env=TavernEnvironment, action_cls=Order, observation_cls=Served, env_name="tavern", **options)
inner.title = "The Tavern"
inner.router.routes = [route for route in inner.router.routes if getattr(route, "path", None) != "/state"]


@inner.get("/menu")
def menu():
    return {"menu": ["ale", "stew"], "callable": "Callable" in str(inspect.signature(create_app))}


@inner.middleware("http")
async def sign(request: Request, call_next):
    response = await call_next(request)
    response.headers["x-tavern"] = "open"
    return response


app = FastAPI(title="street")
app.mount("/tavern", inner)


@app.get("/health")
def health() -> HealthResponse:
    return HealthResponse(status=HealthStatus.HEALTHY)


@app.exception_handler(404)
async def lost(request: Request, error: Exception):
    return JSONResponse({"lost": request.url.path}, status_code=404)
