"""Server-sent events, sans I/O, on bytes: what was fed comes out again, cut into events (R2.4).

The raw bytes of all events in order are the bytes that were fed. Where the cuts lie depends on the stream alone, never
on how it was chunked:

- An event ends with its blank line. Lines end with LF, CRLF or CR.
- A comment line before any field of an event is an event of its own, given at once, so that a keep-alive is not held
  back for a blank line that may come much later. That blank line, or any other that ends nothing, is one too.
- A CR at the end of the data waits for the LF that may follow, but not when the line before ended with a bare CR.
"""

import re
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
_COLON = ord(":")
_LF = ord("\n")
_SHORT = 4_096  # so much of an event may be looked at again with each read
_find_line_end = re.compile(rb"[\r\n]").search


class Event(NamedTuple):  # not a dataclass: made once per token of every stream, at a third of the cost
    """One event: its exact bytes, and what they say.

    `data` is None without a `data` field; several are joined by LF. `comment_only`: no field at all, so that nothing
    is dispatched by a client. An event may be cut off only if `EventDecoder.end` gave it.
    """

    raw: bytes
    data: bytes | None
    event: bytes | None
    comment_only: bool


class EventDecoder:
    """Cuts a byte stream into events, in time linear in its length."""

    __slots__ = ("_at", "_bare", "_begun", "_line", "_pending")

    def __init__(self) -> None:
        self._pending = bytearray()  # the bytes of the event that is not complete
        self._line = 0  # where its last line begins
        self._at = 0  # where the search for the end of that line goes on
        self._bare = False  # whether the line before ended with a CR alone
        self._begun = False  # whether the first event, which a BOM may precede, is over

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
        pending = self._pending
        if not self._begun or len(pending) > _SHORT or b"\r" in chunk or b"\r" in pending:
            pending += chunk
            return self._cut()
        if pending:
            chunk = bytes(pending) + chunk
            pending.clear()
            self._line = self._at = 0
        events, done = _whole_events(chunk)
        pending += chunk[done:]
        return events

    def end(self) -> list[Event]:
        """What was fed and not yet given: at most one event, without its blank line."""
        raw = bytes(self._pending)
        self._pending.clear()
        self._line = self._at = 0
        return [self._event(raw)] if raw else []

    def _cut(self) -> list[Event]:
        buffer, events, start = self._pending, [], 0
        while (end := self._line_end()) >= 0:
            text = self._text_start()
            head = bytes(buffer[text : text + 1])
            blank = head in (b"\r", b"\n")
            comment = head == b":" and self._line == start
            if blank or comment:
                events.append(self._event(bytes(buffer[start:end])))
                start = end
            self._bare = not (blank or comment) and buffer[end - 1] != _LF
            self._line = self._at = end
        del buffer[:start]
        self._line -= start
        self._at -= start
        return events

    def _line_end(self) -> int:
        """Where the current line ends, behind its CR, LF or CRLF; -1 if that is not known yet."""
        buffer = self._pending
        found = _find_line_end(buffer, self._at)
        if found is None:
            self._at = len(buffer)
            return -1
        at = found.start()
        if buffer[at] == _LF or (self._bare and at == self._line):
            return at + 1
        if at + 1 == len(buffer):
            self._at = at
            return -1
        return at + 2 if buffer[at + 1] == _LF else at + 1

    def _text_start(self) -> int:
        """Where the text of the current line begins: behind the BOM, if it is the first."""
        first = not self._begun and self._line == 0
        return len(_BOM) if first and self._pending.startswith(_BOM) else self._line

    def _event(self, raw: bytes) -> Event:
        text = raw if self._begun else raw.removeprefix(_BOM)
        self._begun = True
        return _read(raw, text)


def _whole_events(chunk: bytes) -> tuple[list[Event], int]:
    """The events of a chunk that begins one, without any CR, and how many bytes they take. The common case."""
    events, at = [], 0
    while (line_end := chunk.find(b"\n", at)) >= 0:
        end = line_end + 1
        if chunk[at] not in (_COLON, _LF):
            if not chunk.startswith(b"\n", end):
                end = chunk.find(b"\n\n", end) + 1
                if not end:
                    break
            elif chunk.startswith(b"data: ", at):
                events.append(Event(chunk[at : end + 1], chunk[at + 6 : line_end], None, False))
                at = end + 1
                continue
            end += 1
        raw = chunk[at:end]
        events.append(_read(raw, raw))
        at = end
    return events, at


def _read(raw: bytes, text: bytes) -> Event:
    data: list[bytes] = []
    event = None
    comment_only = True
    for line in text.splitlines():
        if not line or line[0] == _COLON:
            continue
        comment_only = False
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
    return Event(raw, b"\n".join(data) if data else None, event, comment_only)
