"""What stands behind the servicers: nothing while the model loads, then an engine with its tokenizer and template."""

from dataclasses import dataclass, field

from engine.executor.device_faults import DeviceFaults
from engine.runtime.handle import EngineHandle
from services.errors import EdgeReason, unavailable
from services.prompt_threads import PromptThreads
from services.tokenization.chat import ChatTemplate
from services.tokenization.tokenizer import Tokenizer
from telemetry.history import HistorySink


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
    device_faults: DeviceFaults | None = None
    """Where its forwards are made to go wrong; None: they can not be."""


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
