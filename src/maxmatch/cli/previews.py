"""Pictures between the lines of a terminal that can show them, or drawn with coloured half blocks."""

import io
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL import Image

Way = Literal["kitty", "iterm", "blocks"]
_KITTY = ("kitty", "ghostty")
_ITERM = ("iTerm.app", "WezTerm")
_COLUMNS, _ROWS = 36, 9  # at most; a cell is about twice as high as wide
_CELL = 20, 40  # pixels of a cell on a fine screen
_CHUNK = 4096  # characters that kitty takes at once


def way_to_show(environment: Mapping[str, str], is_terminal: bool) -> Way | None:
    """How the terminal shows pictures, by what it says of itself; None where it does not, or hides behind another."""
    if not is_terminal or environment.get("TMUX") or environment.get("STY"):
        return None  # tmux and screen swallow pictures, but pass on the variables of the terminal around them
    program = environment.get("TERM_PROGRAM", "")
    terminal = environment.get("TERM", "").removeprefix("xterm-")
    if program in _ITERM:
        return "iterm"
    return "kitty" if terminal in _KITTY or program in _KITTY or environment.get("KITTY_WINDOW_ID") else None


def way_asked_for(environment: Mapping[str, str], is_terminal: bool) -> Way:
    """How to show pictures to someone who insists; ValueError where it cannot be done."""
    if not is_terminal:
        raise ValueError("the output is no terminal.")
    way = way_to_show(environment, is_terminal)
    if way is None and environment.get("COLORTERM") not in ("truecolor", "24bit"):
        raise ValueError("this terminal shows neither pictures nor all colours (COLORTERM=truecolor).")
    return way or "blocks"


def preview(path: Path, way: Way) -> str:
    """What to print to show a picture; nothing for what is not one."""
    from maxmatch.images import ImageError, load_image

    try:
        picture = load_image(path, at_least=_ROWS * _CELL[1] // 2)
    except (OSError, ImageError):
        return ""
    scale = min(_COLUMNS / picture.width, 2 * _ROWS / picture.height)
    columns, rows = max(1, round(picture.width * scale)), max(1, round(picture.height * scale / 2))
    if way == "blocks":
        return blocks(picture.resize((columns, 2 * rows)))
    picture.thumbnail((columns * _CELL[0], rows * _CELL[1]))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return (kitty if way == "kitty" else iterm)(file.getvalue(), columns, rows)


def kitty(png: bytes, columns: int, rows: int) -> str:
    """A PNG in kitty's graphics protocol: in chunks, and without an answer that would end up in the next command."""
    text = b64encode(png).decode()
    chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]
    heads = [f"a=T,f=100,q=2,c={columns},r={rows},"] + [""] * (len(chunks) - 1)
    more = [1] * (len(chunks) - 1) + [0]
    return "".join(
        f"\033_G{head}m={follows};{chunk}\033\\" for head, follows, chunk in zip(heads, more, chunks, strict=True)
    )


def iterm(png: bytes, columns: int, rows: int) -> str:
    """A PNG as an inline image of iTerm2."""
    facts = f"inline=1;size={len(png)};width={columns};height={rows};preserveAspectRatio=1"
    return f"\033]1337;File={facts}:{b64encode(png).decode()}\a"


def blocks(picture: "Image.Image") -> str:
    """Two pixels a character: the upper half in the colour of the letter, the lower in that of the ground."""
    pixels = picture.convert("RGB").load()
    assert pixels is not None
    lines = []
    for y in range(0, picture.height - 1, 2):
        cells = []
        for x in range(picture.width):
            colours = [";".join(map(str, pixels[x, row])) for row in (y, y + 1)]
            cells.append(f"\033[38;2;{colours[0]};48;2;{colours[1]}m▀")
        lines.append("".join(cells) + "\033[0m")
    return "\n".join(lines)
