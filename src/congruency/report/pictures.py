"""Images embedded in a page."""

import base64
from html import escape


def picture(png: bytes, alt: str, *, dark: bytes | None = None, width: int | None = None, crisp: bool = False) -> str:
    """Return an `img` element with an embedded PNG.

    `dark` is the image for the dark colour scheme; `crisp` scales small images without smoothing.
    """
    wide = "" if width is None else f' width="{width}"'
    style = "max-width: 100%; height: auto; border-radius: 6px;" + (" image-rendering: pixelated;" if crisp else "")
    image = f'<img src="{_address(png)}" alt="{escape(alt)}"{wide} style="{style}">'
    if dark is None:
        return image
    return f'<picture><source srcset="{_address(dark)}" media="(prefers-color-scheme: dark)">{image}</picture>'


def _address(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
