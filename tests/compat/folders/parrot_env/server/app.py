try:
    from openenv.core.env_server.http_server import create_app
except Exception as e:
    raise ImportError("openenv is needed to serve this environment") from e

try:
    from ..models import ParrotAction, ParrotObservation
    from .parrot_environment import ParrotEnvironment
except ImportError:
    from models import ParrotAction, ParrotObservation
    from server.parrot_environment import ParrotEnvironment

app = create_app(
    ParrotEnvironment,
    ParrotAction,
    ParrotObservation,
    env_name="parrot_env",
    max_concurrent_envs=1,
)


def main(host: str = "0.0.0.0", port: int = 8000):
    import uvicorn

    uvicorn.run(app, host=host, port=port)


if __name__ == "__main__":
    main()
