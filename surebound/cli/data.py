"""`surebound data`: which datasets there are, where their files are, whether they are genuine; fetch them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from surebound.cli.options import DataDir, Form
from surebound.cli.output import Format, print_table

if TYPE_CHECKING:
    from surebound.data.download import Progress

Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of datasets: see `surebound data list`.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command("list")(list_)
    group.command()(where)
    group.command()(check)
    group.command()(fetch)
    app.add_typer(group, name="data", help="The datasets: list them, find them, check them, fetch them.")


def list_(data_dir: DataDir = None, form: Form = Format.TABLE) -> None:
    """List the datasets, and which of them are on this machine.

    Examples:  surebound data list    surebound data list --data-dir /data --format json
    """
    from surebound.data.files import data_directory
    from surebound.data.registry import find
    from surebound.data.source import SOURCES
    from surebound.errors import MissingDataError

    root = data_directory(data_dir)
    rows = [("digits", "scikit-learn's digits", 1442, 355, "1x8x8", 10, "comes with the package")]
    for source in SOURCES.values():
        try:
            place = str(find(source, root).folder.resolve())
        except MissingDataError:
            place = "missing" if source.remotes else "missing, to be had by hand"
        shape = "x".join(str(size) for size in source.test_shape)
        rows.append((source.name, source.title, *source.counts, shape, len(source.classes), place))
    print_table(("name", "dataset", "train", "test", "images", "classes", "where"), rows, form)


def where(
    name: Annotated[str, typer.Argument(help="The files of one dataset, by name.")] = "",
    data_dir: DataDir = None,
) -> None:
    """Print the data directory; with a NAME, the files of that dataset or what is missing.

    Examples:  surebound data where    surebound data where cifar10
    """
    from surebound.data.files import data_directory
    from surebound.data.registry import find, source_of

    root = data_directory(data_dir)
    if not name:
        typer.echo(str(root))
        return
    for path in find(source_of(name), root).paths:
        typer.echo(str(path))


def check(names: Names, data_dir: DataDir = None, form: Form = Format.TABLE) -> None:
    """Read datasets whole and compare their content with the published checksums.

    official: images and labels are the published ones, however packed. unverified: right shapes, counts and
    labels, but no checksum vouches for the content. Anything else is an error.

    Examples:  surebound data check mnist    surebound data check cifar10 svhn --data-dir /data
    """
    import warnings

    from surebound import data

    rows = []
    for name in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", data.UnverifiedDataWarning)  # the table says it
            dataset = data.load(name, data_dir)
        provenance = dataset.provenance
        rows.append((name, provenance.status.value, len(dataset.train), len(dataset.test), provenance.digest))
    print_table(("name", "status", "train", "test", "sha256 of the content"), rows, form)


def fetch(names: Names, data_dir: DataDir = None) -> None:
    """Download datasets that are not there yet, and check them. Interrupted downloads are continued.

    Examples:  surebound data fetch mnist    surebound data fetch cifar10 svhn --data-dir /data
    """
    from surebound import data

    for name in names:
        with progress_bars() as progress:
            dataset = data.load(name, data_dir, download=True, progress=progress)
        typer.echo(f"{name}: {dataset.provenance.status.value}, {len(dataset.train)} + {len(dataset.test)} images")


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A bar for each file that is downloaded, on standard error; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    bars = Bars(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console)
    with bars if sys.stderr.isatty() else nullcontext():

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=total)
            bars.update(tasks[file], completed=done, total=total)

        yield show
