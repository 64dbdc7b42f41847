"""The simulated provider as an ASGI app (SPEC 17)."""

from starlette.applications import Starlette
from starlette.routing import Route

from gateway.simulator.provider import Provider
from gateway.simulator.settings import SimulatorSettings

_ANY_METHOD = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def create_simulator(settings: SimulatorSettings | None = None) -> Starlette:
    """The app. `app.state.provider` is its `Provider`, whose settings may be exchanged while it runs.

    Raises ValueError where the settings name a fault or a summariser that does not exist.
    """
    provider = Provider(settings or SimulatorSettings())
    chat = provider.recorded(provider.chat)
    routes = [
        Route("/sim/requests", provider.show_requests, methods=["GET"]),
        Route("/sim/requests", provider.clear_requests, methods=["DELETE"]),
        Route("/sim/stats", provider.show_stats, methods=["GET"]),
        Route("/sim/settings", provider.change_settings, methods=["PUT"]),
        Route("/sim/reset", provider.reset, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/chat/completions", chat, methods=["POST"]),
        Route("/openai/deployments/{model}/chat/completions", chat, methods=["POST"]),
    ]
    for prefix in ("/v1", ""):
        routes += [
            Route(f"{prefix}/models", provider.recorded(provider.list_models), methods=["GET"]),
            Route(f"{prefix}/models/{{model:path}}", provider.recorded(provider.show_model), methods=["GET"]),
            Route(f"{prefix}/embeddings", provider.recorded(provider.embeddings), methods=["POST"]),
            Route(f"{prefix}/echo", provider.recorded(provider.echo), methods=_ANY_METHOD),
        ]
    routes.append(Route("/{path:path}", provider.recorded(provider.unknown), methods=_ANY_METHOD))
    app = Starlette(routes=routes)
    app.state.provider = provider
    return app
