"""The `libra` command."""

from __future__ import annotations

import logging
import sys

import typer

from experiments.commands import (
    bench,
    compare,
    count,
    data,
    demo,
    evaluate,
    features,
    figures,
    gallery,
    pretrain,
    release,
    reproduce,
    show,
    train,
)
from libra_gym.errors import LibraError

app = typer.Typer(
    help="Crowd counting as weighing: data, features, training, counting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.add_typer(features.app, name="features")
app.command("pretrain")(pretrain.pretrain)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("count")(count.count)
app.command("release")(release.release)
app.command("show")(show.show)
app.command("gallery")(gallery.gallery)
app.command("figures")(figures.figures)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)


def main() -> None:
    """Run the command; a user's mistake is one sentence on standard error and exit status 2."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        app()
    except LibraError as error:
        print(f"libra: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
