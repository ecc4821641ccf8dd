"""The subcommands of the fleet: `muster fleet clients | run | task | wheel | fairness | explain | agents | enroll | …`.

Each has a file beside this one, imported when it is used.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl, Svg, alone, unused
from muster_server.systems.fleet.cli.formats import Format

fleet_app: Final = typer.Typer(
    help="Ask clients over MQTT, give them tasks, and show how evenly they are picked.",
    epilog="Example: muster fleet clients 'country=CN and carrier=1'",
    no_args_is_help=True,
)
task_app: Final = typer.Typer(help="Continuous tasks.", epilog="Example: muster fleet task ls", no_args_is_help=True)
fleet_app.add_typer(task_app, name="task")
cert_app: Final = typer.Typer(
    help="Certificates of clients.", epilog="Example: muster fleet cert ls", no_args_is_help=True
)
fleet_app.add_typer(cert_app, name="cert")


class Customer(StrEnum):
    """Classes of customers; in a minute the first class is served first."""

    major = "major"
    enterprise = "enterprise"
    ordinary = "ordinary"


Selector = Annotated[
    str, typer.Argument(metavar="SELECTOR", help="Clients: 'province=520000 and not carrier in (1, 2)' [all].")
]
Where = Annotated[str, typer.Option("--where", metavar="SELECTOR", help="Selector of the clients [all].")]
Pick = Annotated[int | None, typer.Option("--pick", metavar="N", min=1, help="Clients per run.")]
Target = Annotated[str, typer.Option("--target", metavar="TEXT", help="Text passed to the clients unchanged.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Option passed to the clients; repeat it for more."),
]
Name = Annotated[str, typer.Argument(metavar="TASK")]


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(fleet_app, name="fleet")


@fleet_app.command("clients", epilog="Example: muster fleet clients CN_520000_522200_1 --json")
def clients(
    selector: Selector = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of clients to show.")] = 100,
    after: Annotated[str, typer.Option(metavar="NAME", help="Start after this client.")] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the clients that match a selector: attributes, weight, number of picks."""
    from muster_server.systems.fleet.cli.clients import clients as run
    from muster_server.systems.fleet.cli.reach import reaching

    return reaching(config, registry, lambda asking: run(asking, selector, limit, after, json))


@fleet_app.command(
    "run", epilog="Example: muster fleet run ping --target example.org --pick 100 --where province=520000"
)
def run(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Kind of task that the clients implement: ping.")],
    pick: Annotated[int, typer.Option("--pick", metavar="N", min=1, help="Number of clients to ask.")] = 1,
    where: Where = "",
    target: Target = "",
    option: Option = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Show results as they arrive, until the run ends.")
    ] = True,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Ask clients at once, and show their results. Exit code 1 if results are missing."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.run import options
    from muster_server.systems.fleet.cli.run import run as begin

    said = options(option or [])
    return reaching(
        config, registry, lambda asking: begin(asking, kind, target, where, pick, said, wait=wait, as_json=json)
    )


@fleet_app.command("wheel", epilog="Example: muster fleet wheel --json")
def wheel(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show the last and the next hour: due and sent orders of each minute, by class."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.wheel import wheel as show

    return reaching(config, registry, lambda asking: show(asking, json))


@fleet_app.command("fairness", epilog="Example: muster fleet fairness province=520000")
def fairness(
    selector: Selector = "",
    json: Json = False,
    svg: Svg = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the number of picks of each client, the weights, and how the penalty is computed."""
    from muster_server.systems.fleet.cli.clients import fairness as show
    from muster_server.systems.fleet.cli.reach import reaching

    alone(svg, {"--json": json})
    return reaching(config, registry, lambda asking: show(asking, selector, json, svg))


@fleet_app.command("counts", epilog="Example: muster fleet counts province country=CN")
def counts(
    by: Annotated[
        str, typer.Argument(metavar="ATTRIBUTE", help="country, province, city, carrier, version or tag.")
    ] = "province",
    selector: Selector = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Count the online clients for each value of an attribute."""
    from muster_server.systems.fleet.cli.clients import counts as show
    from muster_server.systems.fleet.cli.reach import reaching

    return reaching(config, registry, lambda asking: show(asking, by, selector, json))


@fleet_app.command("runs", epilog="Example: muster fleet runs --limit 20")
def runs(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Number of runs to show, the newest first.")] = 50,
    after: Annotated[str, typer.Option(metavar="PLACE", help="Continue after a page, which prints this value.")] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List the runs that started, with how they ended."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.wheel import runs as show

    return reaching(config, registry, lambda asking: show(asking, limit, after, json))


@fleet_app.command("results", epilog="Example: muster fleet results probe-shop --format csv --out results.csv")
def results(
    name: Annotated[str, typer.Argument(metavar="TASK", help="Name of a task, or of a run: probe-shop@29833333.")],
    minutes: Annotated[int, typer.Option(min=1, max=5_256_000, help="Of a task: minutes up to now.")] = 60,
    format_: Annotated[
        Format, typer.Option("--format", help="table, json (an object a line), csv or parquet.")
    ] = Format.table,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write into this file [stdout].")] = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the stored results of a task, or write them into a file."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.results import results as show

    return reaching(config, registry, lambda asking: show(asking, name, minutes, format_, out))


@fleet_app.command("minutes", epilog="Example: muster fleet minutes probe-shop --minutes 60 --mark ''")
def minutes(
    name: Annotated[str, typer.Argument(metavar="TASK", help="Name of a task, or of a run: probe-shop@29833333.")],
    minutes: Annotated[int, typer.Option(min=1, max=5_256_000, help="Of a task: minutes up to now.")] = 60,
    mark: Annotated[
        str | None, typer.Option(metavar="MARK", help="Only this mark; '': only the rows of all clients [every mark].")
    ] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show results, failures and percentiles of a task by minute and mark."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.results import minutes as show

    return reaching(config, registry, lambda asking: show(asking, name, minutes, mark, json))


@fleet_app.command("explain", epilog="Example: muster fleet explain probe-shop 29833333")
def explain(
    task: Annotated[str, typer.Argument(metavar="TASK", help="Name of a task or of a run.")],
    minute: Annotated[
        int | None, typer.Argument(metavar="MINUTE", help="Minute of the run, since 1970 [the last run].")
    ] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show a run's account and draws, and repeat the draw: it must give the same clients. Exit code 1 if it does not."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.wheel import explain as show

    name = task if minute is None else f"{task}@{minute}"
    return reaching(config, registry, lambda asking: show(asking, name, json))


@fleet_app.command("stats", epilog="Example: muster fleet stats --minutes 60")
def stats(
    minutes: Annotated[int, typer.Option(min=1, max=1_440, help="Number of minutes before now.")] = 60,
    mark: Annotated[str, typer.Option(metavar="MARK", help="Only this mark, for example CN_520000_522200_1.")] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show connects and disconnects of each minute, from Redis."""
    from muster_server.systems.fleet.cli.clients import stats as show
    from muster_server.systems.fleet.cli.reach import reaching

    return reaching(config, registry, lambda asking: show(asking, minutes, mark, json))


@fleet_app.command("refresh", epilog="Example: muster fleet refresh")
def refresh(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Make the scheduler read the table of tasks after another program has changed it. Exit code 1 if a task is
    refused."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import refresh as run

    return reaching(config, registry, lambda asking: run(asking, json))


@fleet_app.command("heal", epilog="Example: muster fleet heal probe-7")
def heal(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[CLIENT…]", help="Names of clients [heal the tasks].")
    ] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Undo the effects of a clock that was ahead: let tasks run by the clock again, or let clients begin with any
    epoch."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.clock import heal as run

    return reaching(config, registry, lambda asking: run(asking, names or [], json))


@fleet_app.command("enroll", epilog="Example: muster fleet enroll probe-7")
def enroll(
    names: Annotated[list[str], typer.Argument(metavar="CLIENT…", help="Names of clients: letters, digits, _ and -.")],
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Create passwords for clients at the local mosquitto and print them once. They replace old ones."""
    from muster_server.systems.fleet.cli.agents import enroll as run

    return run(config, names, json)


@cert_app.command("issue", epilog="Example: muster fleet cert issue probe-7 --days 365 --out certificates")
def cert_issue(
    names: Annotated[list[str], typer.Argument(metavar="CLIENT…", help="Names of clients: letters, digits, _ and -.")],
    days: Annotated[int, typer.Option(min=1, max=3_650, help="Days until they expire.")] = 365,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Write NAME.pem, NAME.key and ca.pem here.")] = (
        Path("certificates")
    ),
    csr: Annotated[
        Path | None, typer.Option("--csr", metavar="FILE", help="Sign this request (PEM); its key stays where it is.")
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Issue certificates by which clients prove their names to the local mosquitto, instead of passwords."""
    from muster_server.systems.fleet.cli.certificates import issue as run

    return run(config, names, days, out, csr, json)


@cert_app.command("revoke", epilog="Example: muster fleet cert revoke probe-7")
def cert_revoke(
    which: Annotated[
        list[str], typer.Argument(metavar="CLIENT…", help="Clients, for all their certificates, or serial numbers.")
    ],
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Revoke certificates: mosquitto refuses them at once, and open connections lose their topics."""
    from muster_server.systems.fleet.cli.certificates import revoke as run

    return run(config, which, json)


@cert_app.command("ls", epilog="Example: muster fleet cert ls --json")
def cert_ls(json: Json = False, config: ConfigFile = None) -> int:
    """List the certificates that have not ended."""
    from muster_server.systems.fleet.cli.certificates import ls as run

    return run(config, json)


@fleet_app.command("agents", epilog="Example: muster fleet agents --count 200 --marks demo")
def agents(
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100_000, help="Clients.")] = 100,
    marks: Annotated[
        str,
        typer.Option(
            metavar="MARK,…", help="Marks, for example CN_520000_522200_1, assigned in turn; demo: a sample of China."
        ),
    ] = "demo",
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Prefix of the clients' names.")] = "demo",
    silent: Annotated[str, typer.Option(metavar="CHANCE", help="Share of orders without an answer: 0.05 or 5%.")] = "0",
    for_: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="SECONDS", help="Stop after this time.")
    ] = None,
    config: ConfigFile = None,
) -> int:
    """Run simulated clients of the local instance until Ctrl-C. They answer each order with a random duration."""
    from muster_server.control.terminal import common
    from muster_server.systems.fleet.cli.agents import agents as run

    return common.run(run(config, count, marks, prefix, silent, for_), endless=True)


@task_app.command(
    "add", epilog="Example: muster fleet task add probe-shop --every 5m --pick 100 --where province=520000"
)
def task_add(
    name: Name,
    kind: Annotated[str, typer.Option(metavar="TEXT", help="Kind of task that the clients implement.")] = "ping",
    target: Target = "",
    where: Where = "",
    every: Annotated[str | None, typer.Option(metavar="TIME", help="Time between runs: 5m, 2h, 1d.")] = None,
    pick: Pick = None,
    per_hour: Annotated[int | None, typer.Option(min=1, help="Samples per hour, spread over its minutes.")] = None,
    class_: Annotated[
        Customer, typer.Option("--class", help="Class of the customer: in a minute, the first class is served first.")
    ] = (Customer.ordinary),
    slip: Annotated[
        int, typer.Option(min=0, max=59, metavar="SECONDS", help="Move runs by up to this time within their minute.")
    ] = 0,
    option: Option = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing task of this name.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Add a continuous task: --pick clients --every interval, or --per-hour samples."""
    from muster_server.systems.fleet.cli import tasks
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.run import options
    from muster_server.systems.fleet.questions import TaskRow

    if (every is None) == (per_hour is None):
        raise UserError("--every or --per-hour is needed", USAGE)
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
    """Pause a task until `resume`. Runs in flight continue to their end."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import pause

    return reaching(config, registry, lambda asking: pause(asking, name, paused=True))


@task_app.command("resume", epilog="Example: muster fleet task resume probe-shop")
def task_resume(name: Name, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Run a paused task again. Runs skipped meanwhile do not count as missed."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import pause

    return reaching(config, registry, lambda asking: pause(asking, name, paused=False))


@task_app.command("rm", epilog="Example: muster fleet task rm probe-shop")
def task_rm(name: Name, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Remove a task. Its runs and results stay."""
    from muster_server.systems.fleet.cli.reach import reaching
    from muster_server.systems.fleet.cli.tasks import rm

    return reaching(config, registry, lambda asking: rm(asking, name))
