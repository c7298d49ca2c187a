"""Find the SQL in a model's answer, which may wrap it in prose and code fences.

Nothing here judges the SQL: it is untrusted text until it has been validated.
"""

import re

from coderack.sql.comments import skip_comments

# An unclosed fence is an answer that was cut; what there is of the query is still wanted.
_FENCED = re.compile(
    r"```(?:[ \t]*(?P<tag>sql|sqlite3?|postgres(?:ql)?|psql|mysql|duckdb)\b)?(?P<body>.*?)(?:```|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_QUERY_START = re.compile(r"SELECT\b|WITH\s+(?:RECURSIVE\s+)?[\w\"]+\s*(?:\([^)]*\)\s*)?AS\b", re.IGNORECASE)
_LINE_OR_COLON = re.compile(r"(?:^|:)[ \t]*(?=\w)", re.MULTILINE)
# A piece of SQL in which a semicolon or an empty line means nothing, or any one character. A doubled quote inside a
# string reads as two strings side by side, which comes to the same.
_TOKEN = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|.", re.DOTALL)


def extract_sql(answer: str) -> str | None:
    """Return the first piece of SQL in `answer`, or None.

    In this order: a code block marked as SQL, whatever is in it; another code block that begins like a query; a
    query in inline code; a query in plain text, up to its semicolon or an empty line.
    """
    return _from_fences(answer) or _from_inline_code(answer) or _from_prose(answer)


def _from_fences(answer: str) -> str | None:
    untagged: str | None = None
    for fence in _FENCED.finditer(answer):
        body = fence["body"].strip()
        if fence["tag"] and body:
            return body
        if not _is_query(body):
            # Another language's tag is left in front of the body.
            body = body.partition("\n")[2].strip()
        if untagged is None and _is_query(body):
            untagged = body
    return untagged


def _from_inline_code(answer: str) -> str | None:
    return next((code.strip() for code in _INLINE.findall(answer) if _is_query(code) and " " in code.strip()), None)


def _from_prose(answer: str) -> str | None:
    for start in _LINE_OR_COLON.finditer(answer):
        text = answer[start.end() :]
        keyword = _QUERY_START.match(text)
        if keyword is None:
            continue
        query, terminated = _up_to_end(text)
        # "Select the customers you want." is a sentence; a capitalised keyword counts only with a semicolon.
        if terminated or not keyword[0][:6].strip().istitle():
            return query
    return None


def _is_query(text: str) -> bool:
    return _QUERY_START.match(text, skip_comments(text)) is not None


def _up_to_end(text: str) -> tuple[str, bool]:
    """Cut after the first semicolon (True), else before the first empty line (False)."""
    for token in _TOKEN.finditer(text):
        if token[0] == ";":
            return text[: token.end()].strip(), True
        if token[0] == "\n" and re.match(r"[ \t]*(?:\n|\Z)", text[token.end() :]):
            return text[: token.start()].strip(), False
    return text.strip(), False
