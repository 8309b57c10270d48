"""Images embedded in a page."""

import base64
from html import escape

__all__ = ["picture"]


def picture(png: bytes, alt: str, *, width: int | None = None, crisp: bool = False) -> str:
    """An `img` element with the bytes of a PNG embedded; `crisp` scales small images without smoothing."""
    wide = "" if width is None else f' width="{width}"'
    style = "max-width: 100%; height: auto; border-radius: 6px;" + (" image-rendering: pixelated;" if crisp else "")
    data = base64.b64encode(png).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" alt="{escape(alt)}"{wide} style="{style}">'
