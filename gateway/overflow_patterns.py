"""The table of provider answers (SPEC R10.1): what the words of an error mean.

Data only. The rules cover *kinds* of wording, not providers' strings: a rule names the concepts that one sentence must
hold ("an input", "is over", "a context window"), so that a paraphrase, another field name or another relay changes
nothing. They are written for the normal form of `overflow_text.normalise`. Every gap in a pattern is bounded or a list
of harmless words: the table is linear on any text.
"""

# ruff: noqa: ERA001 - the comments quote what providers say

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final


class AnswerKind(enum.StrEnum):
    """What an upstream answer means for the gateway (R10.1)."""

    INPUT_OVERFLOW = "input_overflow"
    """The input does not fit the model's window: compaction helps."""
    COMBINED = "combined"
    """Only the sum of input and requested output is too large (R10.6)."""
    RATE_LIMIT = "rate_limit"
    QUOTA = "quota"
    OUTPUT_LIMIT = "output_limit"
    """The requested output alone is more than the model gives."""
    BODY_TOO_LARGE = "body_too_large"
    """Bytes, not tokens."""
    OTHER = "other"
    NONE = "none"
    """Not an error at all."""


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


# --- concepts --------------------------------------------------------------------------------------------------------

TOKENISH = _re(
    r"token|context|\bctx\b|上下文|トークン|コンテキスト|토큰|токен|контекст|\bjetons?\b|kontext|contexto|contesto"
)

_INPUT = _re(
    r"\b(?:prompts?|inputs?|messages?|conversations?|chats?|dialog(?:ue)?s?|requests?|requested|history|quer(?:y|ies)|"
    r"contexts?|texts?|contents?|documents?|transcript|thread)\b",
)
_WINDOW = _re(
    r"\b(?:context|ctx)s? ?(?:window|length|len|size|limit|capacity|budget|space|maximum|max|token)s?\b|"
    r"\b(?:max(?:imum)?|longest|available|supported|allowed|total) (?:allowed |supported |model )?(?:context|ctx)\b|"
    r"\b(?:n|num|max) ?ctx\b|\bmax(?:imum)? (?:model|seq|sequence|position|prompt|input)s? ?(?:len|length|size|tokens?|"
    r"token count|embeddings?|window)\b|\b(?:model|sequence|seq) (?:len|length)(?: limit)?\b|\bmodel max length\b|"
    r"\b(?:model|input|prompt)s? (?:input |token )?(?:limit|window)\b",
)
_OVER = _re(
    r"exceed|exceeds|surpass|overflow|\btoo (?:long|large|big|many|much|great)\b|\boverl(?:y )?long\b|"
    r"(?<!must be )(?<!should be )(?<!to be )\b(?:larger|longer|greater|bigger|higher|more) than\b|"
    r"\b(?:is|are|was|were|goes|going|went|ran|runs|by|tokens|length) (?:\w+ )?(?:over|above|beyond|past|outside)\b|"
    r"\bout of (?:context|range|bounds|space)\b|\b(?:not|n't|no longer|never) fit\b|\bfit(?:s|ting)? (?:in|into|within)\b|"
    r"\b(?:limit|maximum|window|length) (?:has been |was |is )?(?:reached|hit|violated|full|exhausted)\b|"
    r"\b(?:reached|hits?|filled|ran out|runs out|exhaust\w*) |\d ?(?:tokens? ?)?(?:>=?|≥) ?\w|"
    r"\b(?:must|should|can|may|has to|have to|needs to) ?(?:not|be|have|contain) (?:\w+ ){0,2}"
    r"(?:less|fewer|no more|smaller|shorter|lower|under|below|at most|within|exceed|<=?|≤|no longer|no larger)|"
    r"\bcannot (?:be (?:more|longer|larger)|exceed|handle|process|accept)|\b(?:only|just) (?:supports?|accepts?|allows?|"
    r"handles?|takes?|has)|\bsupports? (?:only|at most|up to|a maximum)|\bbut (?:the )?\w* ?(?:limit|maximum)|"
    r"\btruncat\w+|should be \[",
)
_TOKENS = _re(r"\btokens?\b")
_LENGTH = _re(r"\b(?:tokens?|lengths?|context|ctx|window|too long|longer)\b")
_BOUND = _re(r"\b(?:limit|max|maximum|allowed|allowance|capacity|than|at most|up to|cap|>)\b|\d")

# One message about the sum of input and output.
_OUT: Final = (
    r"(?:(?:the |requested |specified )*max(?:imum)? (?:new |completion |output |generat\w+ )?tokens|output|completion|"
    r"prediction|generat\w+|response|new tokens|requested (?:output|completion)|decod\w+)"
)
COMBINED_MARK = _re(
    r"\b(?:inputs?|prompts?|messages?|context|query|history)(?: [a-z0-9()]+){0,4} ?(?:\+|plus|and|&|with|combined with|"
    r"together with) ?(?:\d+ )?(?:the |your |its |any |a )?(?:estimated |number of |sum of )?" + _OUT + r"|"
    r"\brequested (?:total )?token(?:s| count| length)|\brequested ?[:=] ?\d|\brequested (?:about |around |approximately )?(?:a total of )?\d+ "
    r"tokens|\btotal requested|\btokens requested|\bwill (?:take|need|use|require) (?:about )?\d+ tokens|"
    r"输入(?:和|与|\+|加)输出|\+ ?max ?\w* ?tokens",
)

# --- rules: what a sentence, or the whole text, says -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rule:
    """All of `holds` in one sentence, all of `also` and none of `unless` in the whole text: then it is of `kind`.

    A `strong` overflow outweighs a status or code that says otherwise (a deterministic overflow dressed as 429 or 503).
    """

    kind: AnswerKind
    holds: tuple[re.Pattern[str], ...]
    also: tuple[re.Pattern[str], ...] = ()
    unless: tuple[re.Pattern[str], ...] = ()
    strong: bool = True
    server_fault: bool = False
    """Speaks only with a status of 500 and above."""


_PER_TIME = _re(
    r"\b(?:per|every) ?(?:\d+ ?)?(?:s|sec(?:ond)?s?|min(?:ute)?s?|hours?|days?|weeks?|months?)\b|"
    r"\w ?/ ?(?:s|sec|second|min|minute|hour|day|month)\b|\b[io]?[tr]p[mdh]\b|\bqp[sm]\b|\b(?:minute|hour|dai)ly "
    r"(?:token |input )?(?:limit|rate)|\brate ?limit(?!ed? error| error)|\brate limited\b|\bthrottl(?!ing error)|"
    r"\btoo many requests\b|\b(?:try again|retry) (?:in|after) (?:about )?\d|\blimit resets\b|\bconcurren|"
    r"频率|頻率|限流|限速|速率|并发|每分钟|每分鐘|每秒|过于频繁|レート制限|毎分|1分あたり|분당|요청 한도|в минуту|"
    r"слишком много запросов|\bpor minuto|\bpar minute|\bpro minute|\bal minuto",
)
_WAIT = _re(r"\btoo many (?:\w+ ){0,2}tokens\b[^.]{0,40}\b(?:wait|later|slow|retry)")
_MONEY = _re(
    r"\binsufficient (?:\w+ )?(?:quota|balance|credits?|funds)|\bplan and billing|\bcredit limit|\bquota\b|\b(?:usage|"
    r"spend|spending|billing) (?:\w+ )?limit|\bbudget (?:has been )?exceeded|\bexceeded (?:\w+ )?budget|余额|餘額|额度|"
    r"欠费|配额|配額|充值|\bquota exceeded",
)
_PAID = _re(r"\bpaid (?:account|plan|tier)|\bcredits?\b")
_UNSAFE = _re(
    r"\bcontent (?:management |safety )?(?:filter|polic)|\bsafety (?:system|setting|filter|polic|reason)|\bsensitive "
    r"(?:content|word|info)|\bmoderation\b|\bflagged\b|\bprohibited\b|\bresponsible ai|\bjailbreak|\bunsafe\b|"
    r"\binappropriate\b|敏感|违规|不安全|内容安全|审核",
)
_MALFORMED = _re(
    r"\b(?:invalid|malformed|bad) (?:json |input |tool |function |response )?schema|\binput schema\b|\bfailed to (?:parse|"
    r"call|load|validate|generate json)(?! (?:upstream|provider|the response|error|response))|\bcould not parse|\bunable to parse|"
    r"\b(?:not|in)(?: a)? ?valid json|\bunexpected (?:token|keyword|field|role)|\bextra inputs|\bunsupported (?:parameter|"
    r"value|field|content)|\b(?:unknown|unrecognized|unexpected) (?:parameter|argument|request argument|role|name|field)|"
    r"\blogit bias|\bstop sequence|\bmalformed input request|\bout of memory\b|\bcuda\b|"
    r"\bvram\b|\btimed? ?out\b|\bdoes not exist\b",
)
_NEGATIVE_OUTPUT = _re(
    r"\bmax(?:imum)? (?:new |completion |output |model )?tokens?\b(?=.{0,80}\b(?:at least|greater|positive|larger|more|"
    r"between|range|>=?))[^.]{0,80}?(?<![\w-])-\d+",
)
_OUT_NAME: Final = (
    r"(?<!\+ )(?<!\+)\bmax(?:imum)? ?(?:completion |output |new |generat\w+ |gen |response |decode )?tokens?"
)
OUTPUT_NAMED = _re(
    _OUT_NAME
    + r"(?: or max \w+ ?tokens?)?(?: (?:parameter|value|field|argument|setting|limit))?:? ?(?:you requested|requested|"
    r"[=:(]? ?\d+\)? ?(?:is|must|exceed|should|cannot|>)|value of|参数|不能|必须|超|过大|取值|[^\w .]{0,2}(?:is|are) (?:too|above|greater|larger|"
    r"higher|more|invalid|not|out|over|set|limited)|must|should|cannot|can not|may not|has to|needs? to|exceeds?|out of)|"
    r"\brange of max|\b(?:at most|up to|only|maximum of|than) \d+ (?:completion|output|generat\w+|response|new) ?tokens?|"
    r"\bmax(?:imum)? (?:allowed |number of |supported )*(?:completion|output|generat\w+|response|new)"
    r"(?: (?:tokens?|length|size|token count))+|\boutput (?:token )?limit|\b(?:requested|number of|too many) (?:requested )?"
    r"(?:output|completion|response|new) tokens?|\b(?:output|completion|response) (?:tokens?|length) (?:\w+ ){0,2}?(?:exceed|"
    r"too|greater|larger|above|over|must|cannot|more)|\bnum predict\b|\b(?:thinking|reasoning)? ?budget tokens?\b|"
    r"\b(?:thinking|reasoning) budget\b|\bcould not finish|(?:输出|生成|輸出)(?:长度|tokens?|的)?.{0,8}(?:超|过长|过大|不能)",
)
_INPUT_COUNTED = _re(
    r"\d (?:input|prompt|message) tokens|\b(?:prompt|inputs?|messages?|request|conversation)(?: (?:token|tokens|count|"
    r"length|is|has|of|contains?|are|with|your|the)){0,4} ?[(:=]? ?\d|\b(?:prompt|inputs?|messages?|conversation) (?:\w+ )?(?:is |are )?"
    r"too (?:long|large)|\bin (?:the|your) (?:prompt|messages|input)\b",
)
_BYTES = _re(
    r"\d ?(?:bytes?|[kmg]i?b)\b|\bbytes?\b|\bmegabytes?\b|字节|位元組|バイト|바이트|байт|\b(?:sent|received) message "
    r"larger|\bstring value length|stream ?read ?constraints|请求体|請求體",
)
_CHARACTERS = _re(
    r"\b(?:max(?:imum)?|total)(?: allowed)? (?:input|prompt|message|content)s? (?:characters|chars)|\bcharacters too long|"
    r"\b(?:inputs?|prompts?|messages|conversation|total)(?: \w+){0,4} (?:exceed\w*|(?:longer|more|greater) than|over|limit "
    r"of)(?: \w+){0,6} (?:characters|chars)\b|(?:输入|总)字数",
)
_ONE_STRING = _re(
    r"\bstring (?:should|is|was|too|length|above|must)|\bexpected (?:a )?(?:string|max ?length)|\barray (?:too|length|must)|"
    r"\blist should|\b\d+ (?:items|elements|entries|characters|chars)\b|\b(?:name|title|description|metadata|tag|label|"
    r"ur[li]|headers?|cookie|content length|file ?name|key)(?: \w+){0,3} (?:too (?:long|large)|exceed)",
)
_COUNTED: Final = (
    r"(?:images?|pictures?|tools?|functions?|files?|documents?|attachments?|videos?|audios?|pages|stop|choices)"
)
_COUNT = _re(
    rf"\btoo many (?:\w+ )?(?:{_COUNTED}|messages)|\b(?:number|count|amount) of (?:\w+ )?(?:{_COUNTED}|messages)|\b(?:at most|up to|more than|"
    rf"maximum(?: of)?|max) \d* ?(?:{_COUNTED}|messages)\b|图片|圖片|图像",
)
_MEDIA = _re(r"\b(?:images?|pictures?|audios?|videos?|files?|pdfs?|attachments?|media|documents?)\b")
_MEDIA_LIMIT = _re(
    r"\btoo\b|exceed|larger|longer|dimension|pixel|resolution|duration|\bmax|\blimit|\bnot allowed|range"
)
_NOT_ADMISSION = _re(r"\bphysical batch|\bbatch size|\bubatch|\bmid generation|\bduring generation|\bwhile generating")
_LOST_ON_THE_WAY = _re(r"^(?:[\w ]+: )?context size has been exceeded\.?$")
_TOO_LITTLE = _re(
    r"\btoo (?:short|small|few)\b|\bminimum (?:token|number|length|context|input|count|of)|\bmin(?:imum)? total"
)
_NOT_ABOUT_LENGTH = _re(r"\bapi key\b|\bunauthori[sz]ed\b|\bbeta\b|\bis not supported\b")
_STATED_WINDOW = _re(
    r"\bmax(?:imum)? (?:allowed )?(?:context|prompt|input|model|sequence|seq)(?: (?:length|len|window|size|tokens?|token|count|"
    r"limit))+ ?(?:[:=(]|of|is|for|was)\D{0,60}\d|\bmax(?:imum)? (?:context|ctx) ?[:=]? ?\d|"
    r"\bmax(?:imum)? (?:length|size|number of tokens)(?: of| for| in)(?: your| the)? (?:input|prompt|message|request)s?\b",
)
_TOO_LONG = _re(
    r"\b(?:prompts?|inputs?|contexts?|conversations?|history|transcript|chats?|messages?|texts?|quer(?:y|ies)|thread)\b"
    r"(?: (?!image|audio|video|file|tool|is not)[\w()#]+){0,5}? too (?:long|large|big|lengthy)\b|\btoo long (?:a |of a )?(?:prompt|"
    r"input|message|context)|\b(?:oversized|over ?long|overly long) (?:prompt|input|context|message)|"
    r"\bcontext\b(?: \w+){0,3} overflow|\boverflow\w*(?: \w+){0,3} context|\bn keep\b.{0,20}>=? ?n ctx|"
    r"\bmax tokens of \d+ exceeded|\brange of (?:the )?(?:input|prompt|message|context)s? (?:length|tokens?)|"
    r"\b(?:inputs?|prompts?|messages?|context) (?:token )?length (?:must|should) be (?:in|within|between)|"
    r"\btoken indices sequence length|\bcontext (?:limit|window|length)? ?exceeded",
)
_TWO_COUNTS = _re(r"\d[^\d]{1,80}\d")
_TWO_TOKEN_COUNTS = _re(r"\d ?(?:tokens?)? ?(?:>|≥|exceeds) ?\d")
_COUNTED_TOKENS = _re(
    r"\b(?:prompt|input|messages?|request|conversation|text)s?(?: \w+){0,5} \d+ (?:input |prompt )?tokens"
)
_ALLOWED = _re(r"\b(?:allows?|accepts?|supports?|handles?|limit|maximum|max|at most|up to)\b\D{0,40}\d")
_COUNTED_WINDOW = _re(r"\b(?:context|ctx) ?(?:length|window|size)(?: \w+){0,4} \d+")
_BOUND_NAMED = _re(r"\b(?:limit|max|maximum|allowed|supported)\b")
_REQUEST_LONG = _re(r"\b(?:request|body|payload|content)(?: \w+){0,4} too (?:long|large)|\bsize limit exceeded")
_TOKEN_COUNT = _re(r"\d+ tokens|\btokens? limit")
_SHORTEN = _re(
    r"\b(?:reduce|decrease|lower|limit|cut)\b.{0,30}\b(?:length|size|tokens?)\b.{0,30}\b(?:prompts?|inputs?|messages?|conversation|"
    r"context|history)\b|\b(?:shorten|trim|truncate|condense)\b.{0,30}\b(?:prompts?|inputs?|messages?|conversation|context|"
    r"history)\b|\bshorter (?:prompt|input|message)",
)
_MANY_TOKENS = _re(
    r"\btoo many (?:\w+ ){0,2}tokens\b|\btokens? (?:limit |count )?(?:was |is |has been )?(?:exceed|too long|reached)"
)
_CHINESE = _re(
    r"(?:上下文|输入|輸入|提示词?|prompt|对话|對話|消息|訊息|请求内容|文本|tokens?|会话|历史|字数|问题).{0,16}(?:超长|过长|過長|太长|超过|超過|超出|"
    r"超限|溢出|过大|太大|达到上限|大于)|(?:超过|超過|超出|大于).{0,16}(?:上下文|最大长度|最大長度|长度限制|tokens?)",
)
_JAPANESE_KOREAN = _re(
    r"(?:コンテキスト|入力|プロンプト|トークン|メッセージ).{0,24}(?:超え|超過|長すぎ|オーバー|大きすぎ)|"
    r"(?:컨텍스트|입력|프롬프트|토큰|메시지).{0,24}(?:초과|너무 (?:깁|길|큽|긴)|넘)",
)
_RUSSIAN = _re(
    r"(?:контекст|запрос|ввод|токен|промпт|сообщени|входн).{0,60}(?:превы[шс]|слишком (?:длин|больш)|больше)|"
    r"(?:превы[шс]|слишком длинн).{0,60}(?:контекст|токен|промпт|запрос|сообщен)",
)
_ROMANCE_GERMAN: Final = (
    r"(?:context[oe]s?|contexte|contesto|kontext\w*|prompt|entrada|entrée|eingabe\w*|mensajes?|mensagens|messaggi|tokens?|jetons?)",
    (
        r"(?:excede\w*|excedi\w*|supera\w*|sobrepasa\w*|ultrapass\w*|dépass\w*|depass\w*|überschr\w*|überstei\w*|eccede\w*|trop (?:long|grand)\w*|"
        r"demasiado (?:larg|grande)\w*|muito (?:long|grande)\w*|zu (?:lang|groß)|tropp[oa] (?:lung|grande)\w*)"
    ),
)
_EUROPEAN = _re(r"\b{0}\b.{{0,60}}\b{1}|\b{1}\b.{{0,60}}\b{0}\b".format(*_ROMANCE_GERMAN))
_SOFT_MONEY = _re(
    r"\bbilling|\bpayment|\bsubscri|\brecharge|\bupgrade\b|\bnot available on|\bfree tier|\blimit exhausted|\bbalance\b|套餐|\bexpired",
)
_SOFT_WAIT = _re(
    r"\btry again later|\bplease wait|\boverloaded|\bcapacity\b|\bslow down|\bbusy\b|\brequests? limit reached|请稍后|繁忙|負荷",
)
_SOFT_BODY = _re(
    r"\b(?:request|entity|payload|body|content)(?: \w+){0,3} too (?:large|big|long)|\bmaximum (?:\w+ )?size|\bsize (?:limit|exceed)",
)

_K = AnswerKind
# Of a request that asked for no output limit, or a sensible one; where the client asked for a negative one, it says so.
DEFAULTED_OUTPUT: Final = Rule(_K.INPUT_OVERFLOW, (_NEGATIVE_OUTPUT,))
RULES: Final[tuple[Rule, ...]] = (
    # tokens per minute, requests per day, "too many tokens, please wait": never the window, whatever else is said
    Rule(_K.RATE_LIMIT, (_PER_TIME,)),
    Rule(_K.RATE_LIMIT, (_WAIT,)),
    # money, plans, budgets
    Rule(_K.QUOTA, (_MONEY,)),
    Rule(_K.QUOTA, (_PAID,), unless=(_WINDOW,)),
    # content filters; schemas, parsers, keys, timeouts
    Rule(_K.OTHER, (_UNSAFE,)),
    Rule(_K.OTHER, (_MALFORMED,)),
    Rule(_K.OTHER, (_NOT_ADMISSION,)),
    Rule(_K.OTHER, (_LOST_ON_THE_WAY,), server_fault=True),
    # vLLM, TensorRT-LLM: the default of max_tokens is window - prompt; below zero the prompt is over
    DEFAULTED_OUTPUT,
    # bytes of a body
    Rule(_K.BODY_TOO_LARGE, (_BYTES,), unless=(COMBINED_MARK,)),
    # one string, one array; Baidu and others cap the characters of the whole input, though
    Rule(
        _K.INPUT_OVERFLOW, (_CHARACTERS,), unless=(_re(r"\bstring\b|\btools?\b|\bname\b|\bdescription\b|\bmax length"),)
    ),
    Rule(_K.OTHER, (_ONE_STRING,), unless=(_TOKENS,)),
    # counts and sizes of images, tools, files
    Rule(_K.OTHER, (_COUNT,), unless=(TOKENISH,)),
    Rule(_K.OTHER, (_MEDIA, _MEDIA_LIMIT), unless=(TOKENISH,)),
    # the output limit, where the text does not count input beside it
    Rule(_K.OUTPUT_LIMIT, (OUTPUT_NAMED,), unless=(COMBINED_MARK, _INPUT_COUNTED)),
    # "prompt is too long", "Input too long", "context overflow"
    Rule(_K.INPUT_OVERFLOW, (_TOO_LONG,)),
    # "... exceeds the context window", "longer than max_model_len"
    Rule(_K.INPUT_OVERFLOW, (_WINDOW, _OVER)),
    # "This model's maximum context length is 8192 tokens."
    Rule(_K.INPUT_OVERFLOW, (_STATED_WINDOW,)),
    # "prompt token count of 65446 exceeds the limit of 64000", "207848 tokens > 200000"
    Rule(_K.INPUT_OVERFLOW, (_INPUT, _LENGTH, _OVER, _TWO_COUNTS)),
    Rule(_K.INPUT_OVERFLOW, (_TOKENS, _TWO_TOKEN_COUNTS)),
    # the same in other languages
    Rule(_K.INPUT_OVERFLOW, (_CHINESE,)),
    Rule(_K.INPUT_OVERFLOW, (_JAPANESE_KOREAN,)),
    Rule(_K.INPUT_OVERFLOW, (_RUSSIAN,)),
    Rule(_K.INPUT_OVERFLOW, (_EUROPEAN,)),
    # what the words alone would not decide against a number of tokens
    Rule(_K.OTHER, (_TOO_LITTLE,)),
    Rule(_K.OTHER, (_NOT_ABOUT_LENGTH,)),
    Rule(_K.QUOTA, (_SOFT_MONEY,)),
    Rule(_K.RATE_LIMIT, (_SOFT_WAIT,)),
    # "Request body too large for gpt-4o model. Max size: 8000 tokens."
    Rule(_K.INPUT_OVERFLOW, (_REQUEST_LONG,), also=(_TOKEN_COUNT,)),
    Rule(_K.BODY_TOO_LARGE, (_SOFT_BODY,), unless=(TOKENISH,)),
    # two counts and no verb: "Your prompt has 9100 tokens. The model allows at most 8192."
    Rule(_K.INPUT_OVERFLOW, (_COUNTED_TOKENS,), also=(_ALLOWED, _TWO_COUNTS), strong=False),
    Rule(_K.INPUT_OVERFLOW, (_COUNTED_WINDOW,), also=(_INPUT, _TWO_COUNTS), strong=False),
    Rule(_K.INPUT_OVERFLOW, (_TOKENS, _OVER, _BOUND_NAMED, _TWO_COUNTS), strong=False),
    # without numbers: "Prompt exceeds max length", "too many tokens", "Please reduce the length of the messages."
    Rule(_K.INPUT_OVERFLOW, (_INPUT, _LENGTH, _OVER, _BOUND), strong=False),
    Rule(_K.INPUT_OVERFLOW, (_MANY_TOKENS,), strong=False),
    Rule(_K.INPUT_OVERFLOW, (_re(r"\brequest(?: \w+){0,3} too long"),), strong=False),
    Rule(_K.INPUT_OVERFLOW, (_SHORTEN,), strong=False),
)

# Codes and types (`context_length_exceeded`, `RateLimitError`), in normal form. Asked where the text does not decide.
CODE_RULES: Final[tuple[Rule, ...]] = (
    Rule(_K.RATE_LIMIT, (_re(r"\brate limit|\btoo many requests|\bthrottl|\boverloaded|\brequests? limit"),)),
    Rule(_K.QUOTA, (_re(r"\bquota\b|\bbilling|\bcredit|\bpayment|\busage limit|\bbalance\b"),)),
    Rule(
        _K.OTHER,
        (
            _re(
                r"\bcontent (?:filter|polic)|\bsafety\b|\bapi key|\bauthenti|\bpermission|\bnot found|\bfunction param|\btool use|"
                r"\bjson valid|\b(?:string|array) (?:above|too)|\bunsupported|\bimage\b|\bschema\b|\binvalid prompt|\bmissing\b",
            ),
        ),
    ),
    Rule(
        _K.INPUT_OVERFLOW,
        (
            _re(
                r"\b(?:context|ctx|prompt|input|conversation|message|sequence)s? ?(?:\w+ ){0,3}(?:exceed|too (?:long|large)|overflow|limit "
                r"reached)|\bexceed\w* (?:\w+ )?(?:context|ctx)|\bcontent length exceeds",
            ),
        ),
    ),
    Rule(
        _K.INPUT_OVERFLOW, (_re(r"\b(?:tokens?|characters) (?:limit )?(?:reached|exceeded|too long)$"),), strong=False
    ),
    Rule(_K.BODY_TOO_LARGE, (_re(r"\b(?:request|payload|entity|body)(?: \w+)? too large"),)),
)
