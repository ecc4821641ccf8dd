"""The word of the toy."""

import typer

toy_app = typer.Typer(help="A toy.", epilog="Example: muster toy hello", no_args_is_help=True)


@toy_app.callback()
def _toy() -> None:
    """What it takes without a word."""


@toy_app.command("hello", epilog="Example: muster toy hello")
def hello() -> int:
    """Say hello."""
    print("hello from the toy")
    return 0


def add(app: typer.Typer) -> None:
    app.add_typer(toy_app, name="toy")
