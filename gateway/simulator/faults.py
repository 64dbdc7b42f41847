"""Faults on demand: what goes wrong with one answer, as a header or the settings name it."""

from dataclasses import dataclass, replace
from typing import Any

HEADER = "x-sim-fault"


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong with one answer (R17.1).

    Written as names joined by commas, some with a number: `400`..`599` answer that status; `cut:N` close the connection after N events (of JSON: N pieces); `hang` never answer,
    `hang:N` fall silent after N events; `slow:MS` wait between events; `split:N` send N bytes at a time; `malformed` break
    one event's JSON; `no-done` leave out `[DONE]`; `cr`, `crlf` other line ends; `comments` comment lines between events;
    `usage-beside` put usage into the last chunk with choices; `cookie` set a cookie; `gzip` compress the answer; `error-event:N` an error event
    after N events; `error-first-event` and `200-error` answer an error with status 200; `overflow-first-event` and
    `overflow-200` do so only with the window's own error.
    """

    status: int | None = None
    cut: int | None = None
    hang: int | None = None
    slow: float = 0.0
    split: int = 0
    malformed: bool = False
    no_done: bool = False
    cr: bool = False
    crlf: bool = False
    comments: bool = False
    usage_beside: bool = False
    gzip: bool = False
    cookie: bool = False
    error_event: int | None = None
    error_first_event: bool = False
    error_200: bool = False
    overflow_first_event: bool = False
    overflow_200: bool = False

    @property
    def newline(self) -> bytes:
        """The line end of a stream."""
        return b"\r\n" if self.crlf else b"\r" if self.cr else b"\n"


NO_FAULTS = Faults()
NEVER_ANSWERS = -1
_SWITCHES = {
    "malformed": "malformed",
    "no-done": "no_done",
    "cr": "cr",
    "crlf": "crlf",
    "comments": "comments",
    "usage-beside": "usage_beside",
    "gzip": "gzip",
    "cookie": "cookie",
    "error-first-event": "error_first_event",
    "200-error": "error_200",
    "overflow-first-event": "overflow_first_event",
    "overflow-200": "overflow_200",
}
_COUNTS = {"cut": "cut", "hang": "hang", "split": "split", "error-event": "error_event"}


def parse_faults(text: str) -> Faults:
    """The faults that a text names. Raises ValueError for one that does not exist."""
    faults = NO_FAULTS
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = item.partition(":")
        if name.isdigit() and 400 <= int(name) <= 599:
            faults = replace(faults, status=int(name))
        elif name in _SWITCHES and not number:
            switch: dict[str, Any] = {_SWITCHES[name]: True}
            faults = replace(faults, **switch)
        elif name == "hang" and not number:
            faults = replace(faults, hang=NEVER_ANSWERS)
        elif name in _COUNTS and number.isdigit():
            count: dict[str, Any] = {_COUNTS[name]: int(number)}
            faults = replace(faults, **count)
        elif name == "slow" and number.replace(".", "", 1).isdigit():
            faults = replace(faults, slow=float(number) / 1000)
        else:
            raise ValueError(f"unknown fault {item!r}")
    return faults
