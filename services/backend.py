"""What stands behind the servicers: nothing while the model loads, then an engine with its tokenizer and template."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.core.ids import SessionId, TurnId
from engine.executor.device_faults import DeviceFaults
from engine.executor.protocol import Capabilities
from engine.runtime.handle import EngineHandle
from services.errors import EdgeReason, unavailable
from services.prompt_threads import PromptThreads
from services.tokenization.chat import ChatTemplate
from services.tokenization.tokenizer import Tokenizer
from telemetry.history import HistorySink
from telemetry.kv.event_log import KvEventLog
from telemetry.kv.feed import KvFeed
from telemetry.spans.record import SpanContext
from telemetry.spans.ring import SpanRing


@dataclass(frozen=True, slots=True)
class Backend:
    engine: EngineHandle
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None for a model without a chat template."""
    features: tuple[str, ...] = ()
    """What the server can do, for programs."""
    threads: PromptThreads = field(default_factory=PromptThreads)
    """Where long inputs are made into ids."""
    history: HistorySink | None = None
    """What is remembered of the last hour."""
    kv_log: KvEventLog | None = None
    """Every change of owner, numbered."""
    kv_feed: KvFeed | None = None
    """What the prefix cache holds, for routers; None: it is not published."""
    spans: SpanRing | None = None
    """Spans that ended lately."""
    find_turn: Callable[[SessionId | None, TurnId], SpanContext | None] | None = None
    """The span of a turn that is alive, or ended lately."""
    device_faults: DeviceFaults | None = None
    """Where its forwards are made to go wrong; None: they can not be."""

    @property
    def model_name(self) -> str:
        """The model alone, without what runs it."""
        return model_name_of(self.engine.capabilities)


def model_name_of(capabilities: Capabilities) -> str:
    """The part before the comma."""
    return capabilities.name.partition(",")[0]


class BackendCell:
    """Filled once, when the model is loaded."""

    def __init__(self) -> None:
        self._backend: Backend | None = None

    def fill(self, backend: Backend) -> None:
        assert self._backend is None, "the backend is filled once"
        self._backend = backend

    def find(self) -> Backend | None:
        """None while the model loads."""
        return self._backend

    def require(self) -> Backend:
        """Raises CallError, UNAVAILABLE, while the model loads."""
        if self._backend is None:
            raise unavailable(EdgeReason.SERVER_LOADING, "the model is still being loaded; try again in a moment")
        return self._backend
