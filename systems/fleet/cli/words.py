"""The words of the fleet: `muster fleet clients | run | task | wheel | fairness | explain | agents | enroll | …`.

The work of a word is in a file beside this one, imported when the word is used.
"""

from enum import StrEnum
from typing import Annotated, Final

import typer

from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl, unused

fleet_app: Final = typer.Typer(
    help="A fleet of clients over MQTT: ask them, give them tasks, see how evenly.",
    epilog="Example: muster fleet clients 'country=CN and carrier=1'",
    no_args_is_help=True,
)
task_app: Final = typer.Typer(help="Continuous tasks.", epilog="Example: muster fleet task ls", no_args_is_help=True)
fleet_app.add_typer(task_app, name="task")


class Customer(StrEnum):
    """Classes of customers; in a minute the first ones go first."""

    major = "major"
    enterprise = "enterprise"
    ordinary = "ordinary"


Selector = Annotated[
    str, typer.Argument(metavar="SELECTOR", help="Clients: 'province=520000 and not carrier in (1, 2)' [all].")
]
Where = Annotated[str, typer.Option("--where", metavar="SELECTOR", help="Clients that are meant [all].")]
Pick = Annotated[int | None, typer.Option("--pick", metavar="N", min=1, help="Clients a run.")]
Target = Annotated[str, typer.Option("--target", metavar="TEXT", help="Told to the clients as it is.")]
Option = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Told to the clients too; may be repeated.")
]
Name = Annotated[str, typer.Argument(metavar="TASK")]


def add(app: typer.Typer) -> None:
    """Add the words to the command."""
    app.add_typer(fleet_app, name="fleet")


@fleet_app.command("clients", epilog="Example: muster fleet clients CN_520000_522200_1 --json")
def clients(
    selector: Selector = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Clients to show.")] = 100,
    after: Annotated[str, typer.Option(metavar="NAME", help="Begin after this client.")] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the clients that a selector means: attributes, weight, how often each was picked."""
    from muster_server.systems.fleet.cli.clients import clients as run
    from muster_server.systems.fleet.cli.reach import reaching

    return reaching(config, registry, lambda asking: run(asking, selector, limit, after, json))


@fleet_app.command(
    "run", epilog="Example: muster fleet run ping --target example.org --pick 100 --where province=520000"
)
def run(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Of task, as the clients know it: ping.")],
    pick: Annotated[int, typer.Option("--pick", metavar="N", min=1, help="Clients to ask.")] = 1,
    where: Where = "",
    target: Target = "",
    option: Option = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show results as they come, until the run's end.")
    ] = True,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Ask clients at once. Exit code 1 if fewer results came than were wanted."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.run import options
    from muster_server.systems.fleet.cli.run import run as begin

    said = options(option or [])
    return reaching(
        config, registry, lambda asking: begin(asking, kind, target, where, pick, said, wait=wait, as_json=json)
    )


@fleet_app.command("wheel", epilog="Example: muster fleet wheel --json")
def wheel(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show the hour before and the hour to come: what is due each minute, by class, and what was sent."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.wheel import wheel as show

    return reaching(config, registry, lambda asking: show(asking, json))


@fleet_app.command("fairness", epilog="Example: muster fleet fairness province=520000")
def fairness(
    selector: Selector = "", json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Show how often each client was picked, the weights, and the punishment with its reason."""
    from muster_server.systems.fleet.cli.clients import fairness as show
    from muster_server.systems.fleet.cli.reach import reaching

    return reaching(config, registry, lambda asking: show(asking, selector, json))


@fleet_app.command("explain", epilog="Example: muster fleet explain probe-shop 29833333")
def explain(
    task: Annotated[str, typer.Argument(metavar="TASK", help="A task, or the name of a run.")],
    minute: Annotated[int | None, typer.Argument(metavar="MINUTE", help="Since 1970 [the last run].")] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show a run's account and draws, and draw again: the same clients must come out. Exit code 1 if they do not."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.wheel import explain as show

    name = task if minute is None else f"{task}@{minute}"
    return reaching(config, registry, lambda asking: show(asking, name, json))


@fleet_app.command("stats", epilog="Example: muster fleet stats --minutes 60")
def stats(
    minutes: Annotated[int, typer.Option(min=1, max=1_440, help="Minutes, up to now.")] = 60,
    mark: Annotated[str, typer.Option(metavar="MARK", help="Of this mark alone, as CN_520000_522200_1.")] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show how many clients came and went in each minute, as Redis has it."""
    from muster_server.systems.fleet.cli.clients import stats as show
    from muster_server.systems.fleet.cli.reach import reaching

    return reaching(config, registry, lambda asking: show(asking, minutes, mark, json))


@fleet_app.command("refresh", epilog="Example: muster fleet refresh")
def refresh(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Have the scheduler read the table of tasks, after something else wrote it. Exit code 1 if a task is refused."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import refresh as run

    return reaching(config, registry, lambda asking: run(asking, json))


@fleet_app.command("heal", epilog="Example: muster fleet heal probe-7")
def heal(
    names: Annotated[list[str] | None, typer.Argument(metavar="[CLIENT…]", help="Clients [the tasks].")] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Mend what a clock that was ahead left: tasks run by the clock again, or clients may begin with any epoch."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.clock import heal as run

    return reaching(config, registry, lambda asking: run(asking, names or [], json))


@fleet_app.command("enroll", epilog="Example: muster fleet enroll probe-7")
def enroll(
    names: Annotated[list[str], typer.Argument(metavar="CLIENT…", help="Names: letters, digits, _ and -.")],
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Let clients in at the local mosquitto, and print their passwords, this once. An old password ends."""
    from muster_server.systems.fleet.cli.agents import enroll as run

    return run(config, names, json)


@fleet_app.command("agents", epilog="Example: muster fleet agents --count 200 --marks demo")
def agents(
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100_000, help="Clients.")] = 100,
    marks: Annotated[
        str, typer.Option(metavar="MARK,…", help="Marks, as CN_520000_522200_1, dealt in turn; demo: some of China.")
    ] = "demo",
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Beginning of the clients' names.")] = "demo",
    silent: Annotated[str, typer.Option(metavar="CHANCE", help="Orders that get no answer: 0.05 or 5%.")] = "0",
    for_: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="SECONDS", help="End after this time.")
    ] = None,
    config: ConfigFile = None,
) -> int:
    """Run simulated clients of the local instance until Ctrl-C. They answer everything with a random number of ms."""
    from muster_server.control.terminal import common
    from muster_server.systems.fleet.cli.agents import agents as run

    return common.run(run(config, count, marks, prefix, silent, for_), endless=True)


@task_app.command(
    "add", epilog="Example: muster fleet task add probe-shop --every 5m --pick 100 --where province=520000"
)
def task_add(
    name: Name,
    kind: Annotated[str, typer.Option(metavar="TEXT", help="Of task, as the clients know it.")] = "ping",
    target: Target = "",
    where: Where = "",
    every: Annotated[str | None, typer.Option(metavar="TIME", help="Time between runs: 5m, 2h, 1d.")] = None,
    pick: Pick = None,
    per_hour: Annotated[int | None, typer.Option(min=1, help="Samples an hour, spread over its minutes.")] = None,
    class_: Annotated[Customer, typer.Option("--class", help="Of the customer: in a minute, the first go first.")] = (
        Customer.ordinary
    ),
    slip: Annotated[int, typer.Option(min=0, max=59, metavar="SECONDS", help="Move runs within their minute.")] = 0,
    option: Option = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a task of this name.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Add a continuous task: each so often with so many clients, or so many samples an hour."""
    from muster_server.systems.fleet.cli import tasks
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.run import options
    from muster_server.systems.fleet.questions import TaskRow

    if (every is None) == (per_hour is None):
        raise UserError("one of --every and --per-hour is needed", USAGE)
    unused({"--pick": pick is not None and every is None}, "--every")
    if every is not None and pick is None:
        raise UserError("--every needs --pick", USAGE)
    minutes = None if every is None else tasks.minutes(every)
    row = TaskRow(
        name=name,
        kind=kind,
        target=target,
        selector=where,
        every_minutes=minutes,
        pick=pick,
        per_hour=per_hour,
        customer=class_.value,
        slip_ms=1000 * slip,
        options=options(option or []),
    )
    return reaching(config, registry, lambda asking: tasks.put(asking, row, new=not replace, as_json=json))


@task_app.command("ls", epilog="Example: muster fleet task ls --json")
def task_ls(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """List the tasks."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import ls

    return reaching(config, registry, lambda asking: ls(asking, json))


@task_app.command("show", epilog="Example: muster fleet task show probe-shop")
def task_show(name: Name, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show a task."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import show

    return reaching(config, registry, lambda asking: show(asking, name, json))


@task_app.command("pause", epilog="Example: muster fleet task pause probe-shop")
def task_pause(name: Name, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Pause a task until `resume`. Runs in flight go on to their end."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import pause

    return reaching(config, registry, lambda asking: pause(asking, name, paused=True))


@task_app.command("resume", epilog="Example: muster fleet task resume probe-shop")
def task_resume(name: Name, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Have a paused task run again. What it did not run meanwhile is not missed."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import pause

    return reaching(config, registry, lambda asking: pause(asking, name, paused=False))


@task_app.command("rm", epilog="Example: muster fleet task rm probe-shop")
def task_rm(name: Name, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Remove a task. Its runs and results stay."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import rm

    return reaching(config, registry, lambda asking: rm(asking, name))
