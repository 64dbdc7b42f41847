"""What a simulated provider can be told to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

DialectName = Literal["openai", "vllm", "llamacpp", "anthropic", "gemini", "openrouter"]
DIALECT_NAMES: tuple[DialectName, ...] = get_args(DialectName)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """The provider's properties (R17.1). Counts are tokens, times are seconds.

    `faults` hold one fault text (see `faults.parse_faults`) for each ordinary chat request, in order; "" is none, and
    after the last there are none. `fault` is drawn with probability `fault_rate` for every ordinary chat request.
    `summariser` is one name of the registry, or several joined by commas: one for each summary request in order, and
    the last for all that follow.
    """

    window: int = 8192
    dialect: DialectName = "openai"
    alternate: bool = False
    model_info: bool = True
    models: tuple[str, ...] = ("sim-model",)
    model_windows: Mapping[str, int] = field(default_factory=dict)
    token_factor: float | None = None
    summariser: str = "honest"
    faults: tuple[str, ...] = ()
    fault: str = ""
    fault_rate: float = 0.0
    latency: float = 0.0
    refuse_members: tuple[str, ...] = ()
    api_key: str | None = None
    prefix_cache: bool = True
    requests_kept: int = 20_000
    bytes_kept: int = 512 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.dialect not in DIALECT_NAMES:
            raise ValueError(f"dialect {self.dialect!r} is unknown: expected one of {', '.join(DIALECT_NAMES)}")
        if min(self.window, *self.model_windows.values(), self.window) < 1:
            raise ValueError("a window is at least 1 token")
        if not 0 <= self.fault_rate <= 1:
            raise ValueError(f"fault_rate {self.fault_rate} is no probability")

    def window_of(self, model: str) -> int:
        """The context window of a model, in tokens."""
        return self.model_windows.get(model, self.window)
