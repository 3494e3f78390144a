"""Draw whole networks with their regions, piece by piece: what does not run is drawn again."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from surebound.audit.draw import Draw
from surebound.audit.pieces import Maker, Shape, drawn, head
from surebound.audit.text import NetworkText, loaded

#: Most entries of a value: more would only be slow.
_LARGEST = 200

_INPUTS: tuple[Shape, ...] = (
    (1,),
    (2,),
    (3,),
    (5,),
    (6,),
    (1, 5),
    (2, 3),
    (1, 4, 4),
    (2, 3, 4),
    (3, 5, 3),
    (1, 2, 3, 2),
)


def network(draw: Draw, *makers: Maker) -> NetworkText | None:
    """Draw a network of the given pieces, or of one to six of any kind; None if what was drawn does not run."""
    shape = draw.choice(_INPUTS)
    after = region(draw, shape, double=draw.chance(0.1))
    text = NetworkText((), draw.randrange(1 << 16), after, draw.pick(1.0, 1.0, 1.5, 2.5))
    for number, maker in enumerate(makers or [drawn] * draw.randint(1, 6)):
        text, shape = _grown(draw, text, shape, f"p{number}", maker)
    whole = text.with_piece(head(shape, draw.pick(2, 3, 5)))
    with suppress(Exception):  # an integer where the last layer wants floats, and the like
        return None if output_shape(whole) is None else whole
    return None


def region(draw: Draw, shape: Shape, batch: int | None = None, double: bool = False) -> tuple[str, ...]:
    """Draw lines that make ``region`` and the labels of its examples."""
    batch = batch or draw.pick(1, 1, 2, 3, 5)
    sizes = ", ".join(map(str, (batch, *shape))) + (", dtype=torch.float64" if double else "")
    if draw.chance(0.2):
        width = draw.pick(0.0, 1e-6, 0.01, 0.3, 2.0)
        made: tuple[str, ...] = (
            f"lower = torch.rand({sizes}) - 0.5",
            f"region = sb.Box(lower, lower + {width} * torch.rand({sizes}))",
        )
    else:
        eps, clip = draw.pick("1/1000", "1/50", "1/7", "3/10", "1"), draw.pick("(0, 1)", "None")
        made = (f"x = torch.rand({sizes})", f'region = sb.LinfBall(x, "{eps}", clip={clip})')
    own = ("net.double()",) if double else ()
    return (*own, *made, "labels = net(region.reference).argmax(1)")


def _grown(draw: Draw, text: NetworkText, shape: Shape, name: str, maker: Maker) -> tuple[NetworkText, Shape]:
    """Return the network with one more piece that runs, if one is found, and the shape of what it returns."""
    for _ in range(8):
        with suppress(Exception):  # whatever a piece that does not fit raises
            more = text.with_piece(maker(draw, shape, name))
            found = output_shape(more)
            if found is not None:
                return more, found
    return text, shape


def output_shape(text: NetworkText) -> Shape | None:
    """Return the shape of what a network returns for one example of its region; None if it is of no use."""
    plain = dataclasses.replace(text, after=tuple(line for line in text.after if not line.startswith("labels")))
    with loaded(str(plain)) as script:
        inputs = script.region.reference
        found = script.net(inputs)
    size = found[0].numel() if found.dim() > 1 else 0
    usable = found.shape[0] == len(inputs) and 0 < size <= _LARGEST and bool(found.isfinite().all())
    return tuple(found.shape[1:]) if usable else None
