"""The counts that an error states (SPEC R10.1): where limit, input, output and total stand in its words.

Data first, for the normal form of `overflow_text.normalise`; then the one function that applies it.
"""

# ruff: noqa: ERA001 - the comments quote what providers say

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


_BOUND_WORDS: Final = (
    r"(?: (?:number|of|the|this|a|your|input|prompt|context|ctx|model|models|model's|mdl|seq|sequence|position|allowed|permitted|supported|"
    r"configured|available|total|combined|request|requests|message|messages|conversation|tokens?|lengths?|len|size|count|window|limit|"
    r"maximum|max|num|for|is|was|are|to|be|being|set|at|only|just|about|approximately|value|which|can|has|by|endpoint|supports?|allows?|accepts?)){0,9}"
)
_INPUT_WORDS: Final = (
    r"(?: (?:resulted|results?|in|contains?|containing|has|have|had|is|was|were|are|with|a|of|total|the|your|used|uses|using|consists|"
    r"counts?|lengths?|len|tokens?|size|number|about|approximately|around|approx|currently|current|needs?|requires?|came|comes|to|"
    r"estimated|input|prompt|messages?|request|full|text)){0,8}"
)


# "context length 9001 is greater than 8192": the first number is not the limit.
_NOT_OVER: Final = r"(?! ?\)? ?(?:tokens?,? )?(?:which )?(?:is |are |was )?(?:exceeds|(?:greater|larger|longer|more|bigger) than|over |> ?\w|surpasses))"


def _counts(pattern: str) -> re.Pattern[str]:
    """A pattern in which `<limit>` stands for a count of that name."""
    pattern = pattern.replace("<at_least>", r"(?P<at_least>at least |more than |over |> ?)?")
    pattern = pattern.replace("<limit>", "<limit>" + _NOT_OVER)
    return _re(
        re.sub(r"<(limit|input|output|total)>", r"(?P<\1>(?<![a-z0-9_.])\\d{1,12})(?!(?!tok)[a-z0-9_%])", pattern)
    )


# What is no count of tokens: an excess, characters, statuses and codes.
_NOISE: Final = _re(
    r"\bby (?:about |approximately )?\d+(?: tokens?)?|\d+ ?(?:characters?|chars?|bytes?|[kmg]i?b\b|字符|字)|"
    r"\bcharacters? (?:is |of |limit |: ?|= ?|> ?|<=? ?){1,3}\d+|\b(?:code|status|http|error)(?: code)?[ :=(]{1,3}\d{3,5}\b|"
    r"^\W{0,3}\d{3,5}\b(?=[: ])|<\d{3}>|(?<=\d: )\d{3,5}: |(?<=invalid params, context window exceeds limit )\(\d{4}\)|\[\d{4}\]|"
    r"\bparameter=.{0,80}",
)

# Both sides of the sum in one phrase. The first that matches gives all of its numbers.
_SHAPES: Final[tuple[re.Pattern[str], ...]] = (
    # Anthropic: "199759 + 8192 > 200000"
    _counts(r"<input> ?\+ ?<output> ?(?:=\s?\d+ ?)?(?:>=?|exceeds) ?<limit>"),
    # vLLM: "requested 32000 output tokens and your prompt contains at least 769 input tokens"
    _counts(
        r"requested <output> (?:output|completion|new) tokens and (?:your |the )?\w+ contains <at_least><input> (?:input |prompt )?tokens"
    ),
    # "8 input tokens plus 2045 'max_tokens'"; "You passed 9 input tokens and requested 5 output tokens"; TGI: "Given: ..."
    _counts(
        r"<input> (?:input|inputs|prompt|message)(?: tokens)?(?: \w+)? ?(?:plus|and|\+|,)(?: requested| requests| asked for)? ?<output> "
        r"(?:max|output|completion|new|generat)"
    ),
    # OpenAI, OpenRouter, SGLang: "(54 in the messages, 8192 in the completion)", "5 tokens from the input messages and ..."
    _counts(
        r"<input>(?: tokens)? (?:in|from|for) (?:the |your )?(?:input )?(?:messages?|prompt|input)[^.\d]{0,30}<output>(?: tokens)? "
        r"(?:in|for|from) (?:the |your )?(?:completion|output|response|generat)"
    ),
    # "prompt tokens (5000) + max_tokens (4096)"
    _counts(
        r"(?:prompt|input|messages?)(?: \w+){0,3} ?[(:=] ?<input>\)? ?(?:tokens? ?)?(?:\+|plus|and|,) ?(?:the |requested )?(?:max (?:new |completion |output )?tokens|output|completion|new)"
        r"(?: \w+){0,3} ?[(:=] ?<output>"
    ),
    # "(1030 > 1024)", "207848 tokens > 200000 maximum"
    _counts(r"<input>(?: tokens?)? ?> ?<limit>(?! ?-)"),
    # llama-cpp-python counts the prompt alone: "Requested tokens (5000) exceed context window of 4096"
    _counts(r"requested tokens \(<input>\) exceed context window of <limit>"),
    # "Conversation too long: 9001/8192 tokens"
    _counts(r"<input> ?(?:of|/|out of) ?<limit> ?tokens"),
)

_LIMITS: Final[tuple[re.Pattern[str], ...]] = (
    # "input tokens: 9001 (max 8192)"
    _counts(r"\((?:max|maximum|limit)(?: is| of|:|=)? ?<limit>"),
    _counts(
        r"\bmax(?:imum)? (?:supported |allowed )?(?:context|ctx|sequence|seq|model) ?(?:length|window|size|len)"
        + _BOUND_WORDS
        + r" ?[:=(,]? ?\(?<limit>"
    ),
    # "maximum context length is only 8192", "context size (8192 tokens)", "n_ctx (4096)", "model max length: 8192"
    _counts(
        r"(?:(?:context|ctx|sequence|seq|model) ?(?:length|window|size|limit|len|max length)|\bn ctx)"
        + _BOUND_WORDS
        + r" ?[:=(,]? ?\(?<limit>"
    ),
    _counts(r"\bcontext ?\(<limit>"),
    # "too large for model with 131072 maximum context length", "4096-token context window"
    _counts(r"<limit>[ -](?:tokens? )?(?:max(?:imum)? )?(?:context|ctx)\b"),
    # "maximum prompt length is 256000", "maximum number of tokens allowed (1048576)", "max_num_tokens (69632)"
    _counts(r"\bmax(?:imum)?" + _BOUND_WORDS + r" ?[:=(]? ?\(?<limit>"),
    # "limit of 272000", "while limit is 40000", "token limit: 262144"
    _counts(r"\blimit(?:ed)?" + _BOUND_WORDS + r" ?[:=(]? ?\(?<limit>"),
    # "must be <= 2048", "no more than 8192", "cannot exceed 2048", "only supports up to 1000000"
    _counts(
        r"(?:<=?|≤|no more than|not more than|less than(?: or equal to)?|fewer than|smaller than|shorter than|below|under|at most|"
        r"up to|not exceed|cannot exceed|supports?(?: only)?|handles?|accepts?|within)" + _BOUND_WORDS + r" ?\(?<limit>"
    ),
    # "Range of input length should be [1, 6000]"
    _counts(r"[\[(] ?\d{1,3} ?[,~-] ?<limit> ?[\])]"),
    _counts(r"\bbetween \d{1,3} and <limit>"),
    # "... exceeds 8192", "> 200000 maximum", "over the 4096"
    _counts(
        r"(?:exceed\w*|\bover|\babove|\bbeyond|(?:longer|larger|greater|more|bigger|higher) than|[>≥]=?)"
        + _BOUND_WORDS
        + r" ?[:(]? ?<limit>(?! ?-)"
    ),
    # "200000 maximum", "8192 token limit"
    _counts(r"<limit>(?:[ -]tokens?)? (?:max\b|maximum|limit|allowed)"),
    # 最大长度为8192, 最大コンテキスト長 8192, максимум 8192, longitud máxima de contexto es 8192
    _counts(
        r"(?:最大|上限|限制|最多|不超过|不能超过|超过|超過|超出|최대|максим\w*|лимит\w*|m[aá]xim\w*|maxima\w*|massim\w*|höchst\w*|límite)[^\d.。#]{0,40}<limit>"
    ),
)

_OUTPUTS: Final[tuple[re.Pattern[str], ...]] = (
    _counts(r"<output> (?:requested )?(?:output|completion|generated|new) tokens"),
    _counts(r"<output> (?:tokens )?(?:in|for) the (?:output|completion)"),
    _counts(
        r"\bmax (?:new |completion |output )?tokens(?: or max \w+ tokens)?(?: of| is|:|=)?(?: too (?:large|high|big):?)? ?\(?<output>"
    ),
)

_TOTALS: Final[tuple[re.Pattern[str], ...]] = (
    _counts(r"\brequested(?: about| around| approximately| a| total| of| token| tokens| count){0,5} ?[:=(]? ?<total>"),
    _counts(r"\btotal(?: of| number| tokens?| token count| is| requested| about){0,5} ?[:=(]? ?<at_least><total>"),
    _counts(r"\b(?:will|would|to) (?:take|need|use|require) (?:about )?<total> tokens"),
    _counts(r"\b(?:received|got|given|sum)(?: is| of)? ?[:=(]? ?<total>"),
    _counts(r"\b(?:output|completion|response|generation)(?: tokens?)? ?\(<total>"),
)

# OpenRouter: "(81684 of text input, 3748 of tool input, ...)": the parts of the input.
_INPUT_PART: Final = _re(r"(\d{1,12})(?: tokens)? of (?:\w+ )?input")

_COUNTED_INPUTS: Final[tuple[re.Pattern[str], ...]] = (_counts(r"<at_least><input> (?:input|prompt|message) tokens"),)

_INPUTS: Final[tuple[re.Pattern[str], ...]] = (
    # "your messages resulted in 149767 tokens", "(length 66501)", "prompt token count of 65446", "input (61709 tokens)"
    _counts(
        r"\b(?:messages?|prompts?|inputs?|request|conversation|query|text|content|context)"
        + _INPUT_WORDS
        + r" ?[:=(]? ?(?:length )?<at_least><input>(?! ?-)"
    ),
    # "you supplied 5441", "got 9136", "Given: 1168", "current length is 42328", "keep the first 111490 tokens"
    _counts(
        r"\b(?:got|given|received|recieved|supplied|provided|sent|submitted|passed|found|actual|current|used|counted|requested|first|keep|has|"
        r"contains?|length|is|was|were)" + _INPUT_WORDS + r" ?[:=(]? ?<at_least><input>(?! ?-)"
    ),
    # "prompt is too long: 207848 tokens > 200000"
    _counts(r"\btoo (?:long|large|big|many)(?: \w+){0,3} ?[:(,]? ?<input>"),
    _counts(r"<at_least><input> (?:\w+ )?tokens?\b"),
    _counts(r"<input> ?>=? ?#"),
    _counts(r"<input> (?:were|was) (?:given|used|sent|provided|supplied|received|requested)"),
    _counts(r"\btokens?(?: count| length| number)?(?: is| was| of)? ?[:=(]? ?<input>"),
    # 当前长度 9000, 実際 9000, получено 9000
    _counts(
        r"(?:当前|當前|实际|输入|輸入|请求|長さ|长度|共|现在|入力|입력|получено|передано|recibid\w*|reçu\w*|erhalten)[^\d.。#]{0,16}<input>"
    ),
)

# Numeric members of an error object.
LIMIT_KEYS: Final = frozenset(
    {
        "n_ctx",
        "context_length",
        "max_context_length",
        "context_window",
        "max_model_len",
        "max_input_tokens",
        "max_prompt_tokens",
        "context_limit",
        "token_limit",
        "max_context_tokens",
        "max_context_window",
        "model_limit",
        "max_seq_len",
    }
)
ACTUAL_KEYS: Final = frozenset(
    {
        "n_prompt_tokens",
        "prompt_tokens",
        "input_tokens",
        "prompt_token_count",
        "input_token_count",
        "num_prompt_tokens",
        "num_input_tokens",
        "n_tokens",
        "actual_tokens",
        "prompt_length",
    }
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The counts that a text states, in tokens."""

    limit: int | None = None
    input: int | None = None
    output: int | None = None
    total: int | None = None
    at_least: bool = False


def numbers_in(text: str, *, combined: bool) -> Numbers:
    """Take the counts out of `text`: each number serves once, the plainest phrases first."""
    text = _NOISE.sub(" ", text)
    found: dict[str, int] = {}
    at_least = False
    parts = [int(part) for part in _INPUT_PART.findall(text)]
    if parts:
        found["input"] = sum(parts)
        text = _INPUT_PART.sub("#", text)
    shapes = _SHAPES if not parts else ()
    for patterns in (
        shapes,
        _LIMITS,
        _COUNTED_INPUTS,
        _OUTPUTS if combined else (),
        _TOTALS if combined else (),
        _INPUTS,
    ):
        for pattern in patterns:
            match = pattern.search(text)
            groups = match.groupdict() if match else {}
            if match is None or any(name in found for name in groups if name != "at_least"):
                continue
            bound = groups.pop("at_least", None)
            at_least = at_least or bound is not None
            found |= {name: int(count) for name, count in groups.items() if count is not None}
            text = _blank(text, match)
            break
        if "total" in found and "input" not in found:
            break
    return Numbers(**found, at_least=at_least)


def _blank(text: str, match: re.Match[str]) -> str:
    for name in match.groupdict():
        if name != "at_least":
            start, end = match.span(name)
            text = text[:start] + "#" * (end - start) + text[end:]
    return text
