"""Text in HTML and in figures, so that nothing that stands in a file is ever taken for markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def escape(text: object) -> str:
    """Write text so that HTML shows it as it is, in an attribute as well."""
    return html.escape(str(text), quote=True)


def label(text: object) -> str:
    """Write text so that a figure shows it as it is: figures take a few tags for markup.

    >>> label("<b>gpu</b> & co")
    '&lt;b&gt;gpu&lt;/b&gt; &amp; co'
    """
    return html.escape(str(text), quote=False)


def script_safe(json_text: str) -> str:
    r"""Write JSON so that it can stand in a script element, whatever text it holds.

    >>> script_safe('{"a": "</script>"}')
    '{"a": "\\u003c/script\\u003e"}'
    """
    for sign in "<>&\u2028\u2029":
        json_text = json_text.replace(sign, f"\\u{ord(sign):04x}")
    return json_text


def tag(name: str, *parts: str, **attributes: object) -> str:
    """Give an element with some parts, which are markup already, and attributes, which are text.

    >>> tag("p", escape("1 < 2"), class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(parts)}</{name}>"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, caption: str = ""
) -> str:
    """Give a table of text; the first ``left`` columns are set to the left, others as numbers."""
    kinds = [None if at < left else "number" for at in range(len(head))]
    titles = "".join(
        tag("th", escape(t), class_=k, scope="col") for t, k in zip(head, kinds, strict=True)
    )
    body = "".join(
        tag(
            "tr",
            *(tag("td", escape(cell), class_=kind) for cell, kind in zip(row, kinds, strict=True)),
        )
        for row in rows
    )
    words = tag("caption", escape(caption)) if caption else ""
    inner = tag("table", words, tag("thead", tag("tr", titles)), tag("tbody", body))
    return tag("div", inner, class_="wide")


def listing(sentences: Iterable[str]) -> str:
    """Give a list of sentences."""
    return tag("ul", *(tag("li", escape(sentence)) for sentence in sentences))


__all__ = ["escape", "label", "listing", "script_safe", "table", "tag"]
