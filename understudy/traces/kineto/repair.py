"""Makes almost-JSON into JSON without moving a byte, so that positions stay true.

What profilers are known to write: not-a-number literals, control characters and stray backslashes
in strings (file paths, names taken from source code), text that is not UTF-8, and numbers with a
second sign (`0.-12`: Kineto prints the two halves of a negative time separately).
"""

from __future__ import annotations

import codecs
import re

#: Strings are matched whole so that nothing inside them is taken for a literal.
_TOKEN = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\Z)'
    rb"|(?<![\w.\"])-?(?:nan|inf(?:inity)?)(?:\(\w*\))?(?![\w.])"
    rb"|-?\d+\.-\d+",
    re.IGNORECASE | re.DOTALL,
)
_CONTROL = bytes.maketrans(bytes(range(32)), b" " * 32)
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})(.)|(\\.)', re.DOTALL)


def repaired(text: bytes) -> bytes:
    """The text with each defect replaced by as many bytes of valid JSON.

    A not-a-number becomes an empty string: readers take it for a missing value.
    """
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        text = text.decode("utf-8", "understudy_question_marks").encode("utf-8")
    return _TOKEN.sub(_repair_token, text)


def _repair_token(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token.startswith(b'"'):
        token = token.translate(_CONTROL)
        return _BAD_ESCAPE.sub(_repair_escape, token) if b"\\" in token else token
    if token[-1:].isdigit():
        sign_at = token.index(b".-") + 1
        digits = token[:sign_at] + token[sign_at + 1 :]
        return digits + b" " if digits.startswith(b"-") else b"-" + digits
    return b'""'.ljust(len(token))


def _repair_escape(match: re.Match[bytes]) -> bytes:
    return match[2] or b"/" + match[1]


def _question_marks(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error("understudy_question_marks", _question_marks)
