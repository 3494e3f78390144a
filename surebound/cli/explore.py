"""`surebound explore`: look into a verification, image by image, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surebound.cli.notes import note
from surebound.cli.options import Clip, Data, DataDir, Device, Quiet, Weights, refuse_device


def register(app: typer.Typer) -> None:
    app.command("explore")(explore)


def explore(
    run: Annotated[
        Path, typer.Argument(help="A run directory, or the results of `surebound verify --out`.", show_default=False)
    ],
    network: Annotated[
        str | None, typer.Option(help="The network that was verified, for results without a run: NET of `verify`.")
    ] = None,
    weights: Weights = None,
    data: Data = None,
    data_dir: DataDir = None,
    clip: Clip = None,
    certificates: Annotated[
        Path | None, typer.Option(help="Where the certificates are (default: RUN/certificates).")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of this machine (default: a free one).")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the page as one file instead of serving it.")] = None,
    images: Annotated[int, typer.Option(min=1, help="With --out: the N hardest images are in the file.")] = 200,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Look into a verification: every image with its verdict, counterexample, ranges of outputs and proof.

    Slide epsilon and see the outputs' ranges by method, the verdict and the stage that gave it; filter by verdict,
    class, stage and radius; sort by hardness; walk by keyboard; ask again at a radius of your own. The page is served
    on 127.0.0.1 only, under an address with a secret, and loads nothing from elsewhere; Ctrl-C ends it. To see it on
    another machine: `ssh -L PORT:127.0.0.1:PORT machine`.

    Examples:

      surebound explore runs/digits --open

      surebound explore runs/digits --out explore.html

      surebound explore results --network net.onnx --data images.npz --certificates proofs
    """
    from surebound.report.explore.subject import open_subject

    refuse_device(device, "the page asks about one image at a time,")
    subject = open_subject(
        run, network=network, weights=weights, data=data, data_dir=data_dir, clip=clip, certificates=certificates
    )
    for each in subject.notes:
        note(each)
    if out is not None:
        from surebound.cli.bar import Bar
        from surebound.report.explore.page import write_explorer

        with Bar("bounding", "no page was written") as bar:
            write_explorer(subject, out, images, bar.show)
        typer.echo(f"page: {out}")
        return
    from surebound.report.explore.server import start

    explorer = start(subject, port)
    typer.echo(explorer.url)
    note(f"{len(subject.records):,} images; Ctrl-C ends it")
    if open_:
        import webbrowser

        webbrowser.open(explorer.url)
    try:
        explorer.serve_forever()
    except KeyboardInterrupt:
        note("ended")
    finally:
        explorer.server_close()
