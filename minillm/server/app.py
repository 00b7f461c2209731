"""The app: which path is answered by what."""

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from minillm.chat_page import render
from minillm.server.engine_state import EngineState, EngineWatch
from minillm.server.errors import ErrorBody, model_not_found, server_error
from minillm.server.guard import Guard
from minillm.server.lifecycle import Lifecycle, shutting_down
from minillm.server.metrics import EngineMetrics
from minillm.server.openapi import answers, document, takes, text_answer
from minillm.server.replies import add_error_handlers, json_reply
from minillm.server.responses import ChatCompletion, ChatCompletionChunk, Completion, Health, Model, ModelList
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest
from minillm.server.service import Service
from minillm.server.tokenization import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
    detokenize,
    tokenize,
)


def make_app(service: Service, metrics: EngineMetrics, lifecycle: Lifecycle) -> FastAPI:
    """The app of one model. It keeps no state but what it is given."""
    app = FastAPI(title="minillm", docs_url=None, redoc_url=None, redirect_slashes=False)
    add_error_handlers(app)
    app.add_middleware(Guard, settings=service.settings, lifecycle=lifecycle)
    if service.settings.allow_origins:  # outermost, so that errors can be read by pages too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.allow_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
    _add_answers(app, service)
    _add_tokenization(app, service)
    _add_models(app, service)
    _add_operation(app, service, metrics, lifecycle)
    _add_engine(app, EngineWatch(service, metrics))
    _add_page(app, needs_key=service.settings.api_key is not None)
    document(
        app,
        [ChatCompletionRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest],
        [
            ChatCompletion,
            ChatCompletionChunk,
            Completion,
            Tokenized,
            Detokenized,
            Model,
            ModelList,
            Health,
            EngineState,
            ErrorBody,
        ],
    )
    return app


def _add_answers(app: FastAPI, service: Service) -> None:
    """OpenAI's two ways to ask for text."""

    @app.post(
        "/v1/chat/completions",
        openapi_extra=takes(ChatCompletionRequest),
        responses=answers(ChatCompletion, stream=ChatCompletionChunk),
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return await service.respond(ChatCompletionRequest, request)

    @app.post(
        "/v1/completions", openapi_extra=takes(CompletionRequest), responses=answers(Completion, stream=Completion)
    )
    async def completions(request: Request) -> Response:
        """Continue texts."""
        return await service.respond(CompletionRequest, request)


def _add_tokenization(app: FastAPI, service: Service) -> None:
    """VLLM's two ways to look at tokens."""

    @app.post("/tokenize", openapi_extra=takes(TokenizeRequest), responses=answers(Tokenized))
    async def tokenized(request: Request) -> Response:
        """Text, or a conversation, in ids."""
        body, size = await service.read(TokenizeRequest, request)
        return await service.off_loop(lambda: json_reply(tokenize(body, service.served)), size)

    @app.post("/detokenize", openapi_extra=takes(DetokenizeRequest), responses=answers(Detokenized))
    async def detokenized(request: Request) -> Response:
        """Ids in text."""
        body, size = await service.read(DetokenizeRequest, request)
        return await service.off_loop(lambda: json_reply(detokenize(body, service.served)), size)


def _add_models(app: FastAPI, service: Service) -> None:
    """The one model."""
    served = service.served
    model = Model(id=served.name, created=service.created, max_model_len=served.max_length)

    @app.get("/v1/models", responses=answers(ModelList))
    async def models() -> Response:
        """The models that are served."""
        return json_reply(ModelList(data=[model]))

    @app.get("/v1/models/{name:path}", responses=answers(Model))
    async def one_model(name: str) -> Response:
        """One of them."""
        if name != served.name:
            raise model_not_found(name, served.name)
        return json_reply(model)


def _add_operation(app: FastAPI, service: Service, metrics: EngineMetrics, lifecycle: Lifecycle) -> None:
    """What those ask who watch over the server."""
    engine_died = "the engine has stopped: start the server anew"

    def alive() -> None:
        if not service.serving.is_running and not lifecycle.draining:
            raise server_error(engine_died)

    @app.get("/health", responses=answers(Health))
    async def health() -> Response:
        """Live: the engine runs. If not, the server should be started anew."""
        alive()
        return json_reply(Health(status="draining" if lifecycle.draining else "ok"))

    @app.get("/health/ready", responses=answers(Health))
    async def ready() -> Response:
        """Ready: requests are taken."""
        alive()
        if lifecycle.draining:
            raise shutting_down()
        return json_reply(Health(status="ok"))

    @app.get("/metrics", response_class=PlainTextResponse, responses=text_answer("Prometheus's text format"))
    async def prometheus() -> Response:
        """Counters, gauges and histograms."""
        return Response(await service.off_loop(metrics.text), headers={"content-type": CONTENT_TYPE_LATEST})


def _add_engine(app: FastAPI, watch: EngineWatch) -> None:
    """What the page shows of the engine."""

    @app.get("/engine", responses=answers(EngineState))
    async def engine() -> Response:
        """Blocks, requests and steps of this moment."""
        return Response(await watch.state(), media_type="application/json", headers={"cache-control": "no-store"})


def _add_page(app: FastAPI, needs_key: bool) -> None:
    """The page for people. It holds nothing that is secret: what it shows, it asks for like any other client."""
    html, policy = render(needs_key)
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        """Talk, and watch the engine."""
        return Response(html, media_type="text/html; charset=utf-8", headers=headers)
