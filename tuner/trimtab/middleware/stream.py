"""Counts tokens and endings in what the engine answers, without decoding it: byte scans, some 1 us per chunk.

A JSON text cannot hold `,"usage":{` inside a string (its quotes would be escaped), so finding it is finding the field.
One server-sent event may carry several tokens (async scheduling, speculative decoding, --stream-interval, a slow
reader): only `usage` is exact. vLLM gives it on each chunk when asked for `continuous_usage_stats` (the sum so far of
that choice), at the end for `include_usage`; what the client did not ask for is cut out again here.
"""

from __future__ import annotations

import re

_USAGE = b',"usage":{'
_COMPLETION = b'"completion_tokens":'
_REASON = b'"finish_reason":'
_FINISH = re.compile(rb'"finish_reason":\s*"(\w+)"(?:,\s*"stop_reason":\s*(null|-?\d+|"))?')
_FINGERPRINT = re.compile(rb',"system_fingerprint":"[^"]*"')
_PROMPT = re.compile(rb'"(?:prompt_tokens|input_tokens)":\s*(\d+)')
_OUTPUT = re.compile(rb'"(?:completion_tokens|output_tokens)":\s*(\d+)')
_ANTHROPIC_STOP = re.compile(rb'"stop_reason":\s*"(\w+)"')
#: an event longer than this is not waited for
MOST_HELD_BYTES = 8 << 20
#: the details of a usage object list tokens per turn in /v1/responses
MOST_USAGE_BYTES = 4096
#: finish_reason -> ending; `stop` is refined by stop_reason
_ENDINGS = {
    b"stop": "stop",
    b"tool_calls": "stop",
    b"function_call": "stop",
    b"length": "length",
    b"repetition": "stop_sequence",
    b"end_turn": "stop",
    b"tool_use": "stop",
    b"max_tokens": "length",
    b"stop_sequence": "stop_sequence",
}
#: of the endings of a request's choices the first found here is the request's
_FIRST = ("error", "length", "stop_sequence", "stop")


class Meter:
    """What was seen of one answer. `complete`: all choices have their finish_reason; `exact`: `tokens` is."""

    def __init__(self, choices: int, stop_tokens: frozenset[int] = frozenset()) -> None:
        self.choices, self.stop_tokens = choices, stop_tokens
        self.tokens = 0
        self.prompt_tokens: int | None = None
        self.exact = False
        self.endings: list[str] = []
        self.complete = False
        #: output of each choice, where it can be told; the longest trains the predictor
        self.by_choice: dict[int, int] = {}

    @property
    def ending(self) -> str | None:
        return next((name for name in _FIRST if name in self.endings), None)

    @property
    def longest(self) -> int:
        return max(self.by_choice.values(), default=self.tokens // max(1, self.choices))

    def feed(self, body: bytes, last: bool) -> bytes:
        """Look at a part of the answer; gives what to send instead."""
        raise NotImplementedError

    def ended(self, reason: bytes, stop_reason: bytes | None) -> None:
        """A choice's finish_reason. A token that ends text by the model's own configuration is no stop sequence."""
        ending = _ENDINGS.get(reason, "error")
        if ending == "stop" and stop_reason not in (None, b"null"):
            by_text = stop_reason == b'"'
            if by_text or (stop_reason is not None and int(stop_reason) in self.stop_tokens):
                ending = "stop_sequence"
        self.end(ending)

    def end(self, ending: str) -> None:
        self.endings.append(ending)
        self.complete = len(self.endings) >= self.choices

    def usage(self, text: bytes) -> None:
        output, prompt = _last(_OUTPUT, text), _last(_PROMPT, text)
        if output is not None:
            self.tokens, self.exact = output, True
        if prompt is not None:
            self.prompt_tokens = prompt


def _last(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    return int(found.group(1)) if found else None


class Whole(Meter):
    """An answer that is one JSON document, of any of the routes."""

    def __init__(self, choices: int, stop_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(choices, stop_tokens)
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, body: bytes, last: bool) -> bytes:
        self._size += len(body)
        if self._size <= MOST_HELD_BYTES:
            self._parts.append(body)
        if last:
            self._read(b"".join(self._parts))
            self._parts.clear()
        return body

    def _read(self, text: bytes) -> None:
        if text.startswith(b'{"error"'):
            return
        # The usage object comes last in OpenAI's answers and before others in Responses; its numbers are nowhere else.
        place = text.rfind(b'"usage":')
        if place >= 0:
            self.usage(text[place : place + MOST_USAGE_BYTES])
        for match in _FINISH.finditer(text):
            self.ended(match.group(1), match.group(2))
        if not self.endings:
            for ending in _responses_or_messages(text):
                self.end(ending)


def _responses_or_messages(text: bytes) -> list[str]:
    match = _ANTHROPIC_STOP.search(text)
    if match:
        return [_ENDINGS.get(match.group(1), "error")]
    if re.search(rb'"status":\s*"incomplete"', text):
        return ["length"]
    if re.search(rb'"status":\s*"failed"', text):
        return ["error"]
    return ["stop"] if re.search(rb'"status":\s*"completed"', text) else []


class Events(Meter):
    """Server-sent events in whatever pieces they come; `_event` sees each whole one, ends included."""

    #: wait for the rest of an event before passing its start on: needed where events are changed
    hold = False

    def __init__(self, choices: int, stop_tokens: frozenset[int] = frozenset()) -> None:
        super().__init__(choices, stop_tokens)
        self._rest = b""

    def feed(self, body: bytes, last: bool) -> bytes:
        # the usual case: one whole event of one line in one piece
        if body.find(b"\n") == len(body) - 2 and body.endswith(b"\n\n") and not self._rest:
            return self._event(body)
        return self._pieces(body, last)

    def _pieces(self, body: bytes, last: bool) -> bytes:
        rest, out = self._rest + body, []
        start = 0
        while True:
            end = rest.find(b"\n\n", start)
            if end < 0:
                break
            out.append(self._event(rest[start : end + 2]))
            start = end + 2
        self._rest = rest[start:]
        if last or len(self._rest) > MOST_HELD_BYTES:
            out.append(self._rest)
            self._rest = b""
        return b"".join(out) if self.hold else body

    def _event(self, event: bytes) -> bytes:
        raise NotImplementedError


class OpenAIEvents(Events):
    """Streams of completions and chat. `cut_chunks`, `cut_final`: usage that the client did not ask for."""

    hold = True

    def __init__(
        self,
        choices: int,
        stop_tokens: frozenset[int] = frozenset(),
        *,
        cut_chunks: bool = False,
        cut_final: bool = False,
        fingerprint: bytes = b"",
    ) -> None:
        super().__init__(choices, stop_tokens)
        self.cut_chunks, self.cut_final = cut_chunks, cut_final
        #: `,"system_fingerprint":"..."` that vLLM puts on the last chunk unless a usage chunk follows
        self.fingerprint = fingerprint
        self._guess = 0
        self._unread = b""
        self._unread_at = 0

    @property
    def tokens(self) -> int:
        """Read when asked for, which is rarely: most running counts are followed by the next."""
        if self._unread:
            self._tokens, self._unread = _completion_tokens(self._unread, self._unread_at), b""
        return self._tokens

    @tokens.setter
    def tokens(self, value: int) -> None:
        self._tokens, self._unread = value, b""

    def _event(self, event: bytes) -> bytes:
        start = event.rfind(_USAGE)  # backwards: it is near the end
        if start < 0:
            return self._without_usage(event)
        if self.complete and b'"choices":[]' in event:
            return self._final(event, start)
        self.exact = True
        if self.choices == 1:
            self._unread, self._unread_at = event, start
        else:
            self._of_choice(event, _completion_tokens(event, start))
        finished = event.startswith(b'"', event.rfind(_REASON, 0, start) + 16) and self._finish(event)
        if not self.cut_chunks:
            return event
        end = event.find(b"}", start)
        if end != len(event) - 4:  # an object within, or fields that follow
            end = _closing(event, start + len(_USAGE) - 1)
        rest = event[end + 1 :]
        if finished and self.cut_final and self.fingerprint and b'"system_fingerprint"' not in event:
            rest = self.fingerprint + rest
        return event[:start] + rest

    def _of_choice(self, event: bytes, tokens: int) -> None:
        place = event.find(b'"index":') + 8
        choice = int(re.match(rb"\d+", event[place:]).group())  # type: ignore[union-attr]
        before = self.by_choice.get(choice, 0)
        self.by_choice[choice] = tokens
        self.tokens += tokens - before

    def _finish(self, event: bytes) -> bool:
        """True: the event ends its choice."""
        match = _FINISH.search(event)
        if match is None:
            return False
        self.ended(match.group(1), match.group(2))
        place = event.find(_USAGE)
        prompt = _PROMPT.search(event, place) if place >= 0 else None
        if prompt and self.choices == 1:
            self.prompt_tokens = int(prompt.group(1))
        return True

    def _final(self, event: bytes, start: int) -> bytes:
        """The usage chunk at the end, with the sums over all choices."""
        self.usage(event[start : start + MOST_USAGE_BYTES])
        if not self.fingerprint:
            match = _FINGERPRINT.search(event)
            self.fingerprint = match.group() if match else b""
        return b"" if self.cut_final else event

    def _without_usage(self, event: bytes) -> bytes:
        if event.startswith(b'data: {"error"'):
            self.endings, self.complete = ["error"] * self.choices, True
        elif event.startswith(b"data: {"):
            if not self.exact:
                # a lower bound: at least one token in each chunk that has text or ends
                self._guess += 0 if b'"role":' in event or b'"choices":[]' in event else 1
                self.tokens = self._guess
            if b'"finish_reason":"' in event:
                self._finish(event)
                if self.cut_final and self.fingerprint and b'"system_fingerprint"' not in event:
                    end = event.rfind(b"}")
                    return event[:end] + self.fingerprint + event[end:]
        return event


def _completion_tokens(event: bytes, start: int) -> int:
    place = event.find(_COMPLETION, start) + len(_COMPLETION)
    end = event.find(b"}", place)
    comma = event.find(b",", place, end)  # details follow
    return int(event[place : end if comma < 0 else comma])


def _closing(text: bytes, start: int) -> int:
    """Place of the brace that closes the one at `start`. Only for objects without strings that hold braces."""
    depth, place = 0, start
    while True:
        opens, closes = text.find(b"{", place + 1), text.find(b"}", place + 1)
        if closes < 0:
            return len(text) - 1
        if 0 <= opens < closes:
            depth, place = depth + 1, opens
        elif depth == 0:
            return closes
        else:
            depth, place = depth - 1, closes


class ResponsesEvents(Events):
    """Streams of /v1/responses: usage only at the end; until then each delta is at least one token."""

    def _event(self, event: bytes) -> bytes:
        name = event[: event.find(b"\n")]
        if name.endswith(b".delta"):
            self.tokens += 1
        elif name in (b"event: response.completed", b"event: response.incomplete", b"event: response.failed"):
            place = event.rfind(b'"usage":')
            if place >= 0:
                self.usage(event[place : place + MOST_USAGE_BYTES])
            ends = {b"completed": "stop", b"incomplete": "length", b"failed": "error"}
            ending = ends[name[len(b"event: response.") :]]
            if ending == "stop" and re.search(rb'"status":\s*"incomplete"', event):
                ending = "length"
            self.end(ending)
        elif name == b"event: error":
            self.end("error")
        return event


class MessagesEvents(Events):
    """Streams of /v1/messages: output_tokens comes with message_delta; until then each block delta is at least one."""

    def _event(self, event: bytes) -> bytes:
        if event.startswith(b"event: content_block_delta"):
            self.tokens += 1
        elif event.startswith(b"event: message_delta"):
            place = event.rfind(b'"usage":')
            if place >= 0:
                self.usage(event[place : place + MOST_USAGE_BYTES])
            match = _ANTHROPIC_STOP.search(event)
            if match:
                self.end(_ENDINGS.get(match.group(1), "error"))
        elif event.startswith(b"event: message_start"):
            prompt = _last(_PROMPT, event)
            self.prompt_tokens = prompt if prompt is not None else self.prompt_tokens
        elif event.startswith(b"event: error"):
            self.end("error")
        return event
