"""Images and collapsible sections embedded in a page."""

import base64
from html import escape

__all__ = ["folded", "picture"]

_KINDS = {b"\x89PNG": "image/png", b"GIF8": "image/gif", b"\xff\xd8\xff": "image/jpeg"}


def picture(content: bytes, alt: str, *, width: int | None = None, crisp: bool = False) -> str:
    """An `img` element with the bytes of a PNG, GIF or JPEG embedded; `crisp` scales small images without smoothing."""
    kind = next((kind for start, kind in _KINDS.items() if content.startswith(start)), None)
    if kind is None:
        raise ValueError("a picture must be PNG, GIF or JPEG")
    wide = "" if width is None else f' width="{width}"'
    style = "max-width: 100%; height: auto; border-radius: 6px;" + (" image-rendering: pixelated;" if crisp else "")
    data = base64.b64encode(content).decode("ascii")
    return f'<img src="data:{kind};base64,{data}" alt="{escape(alt)}"{wide} style="{style}">'


def folded(summary: str, markup: str) -> str:
    """A collapsed section, so that animations do not play unasked."""
    return f"<details><summary>{escape(summary)}</summary>\n{markup}\n</details>"
