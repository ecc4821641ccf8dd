"""`muster bench …`: options, exit codes and output. The measuring is in the other files."""

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from json import dumps
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from typer.core import TyperGroup

from bench import browsers as browsers_bench
from bench import commands as commands_bench
from bench import earlier as earlier_bench
from bench import edge as edge_bench
from bench import every as every_bench
from bench import failover as failover_bench
from bench import fanout as fanout_bench
from bench import hops as hops_bench
from bench import http as http_bench
from bench import isolation as isolation_bench
from bench import likes as likes_bench
from bench import limits as limits_bench
from bench import loss as loss_bench
from bench import machine, netns, pin
from bench import memory as memory_bench
from bench import nodes as nodes_bench
from bench import overload as overload_bench
from bench import receive as receive_bench
from bench import rejoin as rejoin_bench
from bench import scale as scale_bench
from bench import starts as starts_bench
from bench.child import ChildFailedError, python_environment
from bench.muster import TOGETHER, Instance, Muster
from bench.peers import ALL, Missing, Mosquitto, Peer, compare
from bench.plots import draw
from bench.progress import Progress, for_terminal
from bench.report import Case, Report
from bench.rounds import VoidRunError
from bench.table import markdown
from bench.targets import Load
from muster.sizes import COMMAND_BYTES_MAX

EXIT_FAILURE, EXIT_UNAVAILABLE, EXIT_TRY_LATER = 1, 69, 75
QUICK_ROUNDS, FULL_ROUNDS = 3, 5
NO_BENCHES = ("all", "table", "compare")
PIPED_WIDTH = 120


class _Benches(TyperGroup):
    """Refuses the earlier word of a bench by a line that names the new one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and (now := earlier_bench.RENAMED.get(args[0])):
            ctx.fail(f"the bench {args[0]!r} has the word of its system now: muster bench {now}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="bench",
    cls=_Benches,
    help="Measure this machine, Muster and its peers: ratios of one interleaved run, never absolute figures.",
    epilog="Example: muster bench peers --quick",
    no_args_is_help=True,
)


class Loopback(StrEnum):
    plain = "plain"
    wire = "wire"
    both = "both"
    host = "host"


Json = Annotated[bool, typer.Option("--json", help="The document {bench, machine, cases} on stdout.")]
Check = Annotated[bool, typer.Option("--check", help="Exit with 1 if a goal does not hold.")]
Quick = Annotated[bool, typer.Option("--quick", help="Under a minute: median of 3, gates 10 % wider, no p99.")]
Size = Annotated[int, typer.Option("--size", min=17, max=1400, help="Payload bytes.")]
Nodes = Annotated[
    int, typer.Option("--nodes", min=0, max=4_096, help="Nodes that start together [1000; 200 if quick].")
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bar.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="DIR", file_okay=False, help="Also draw the figures as SVG into this folder."),
]
Lo = Annotated[
    Loopback,
    typer.Option(
        "--loopback",
        help="plain or wire (mtu 1500, super-packets cut): a private network namespace; host: loopback as it is.",
    ),
]


@dataclass(frozen=True)
class Options:
    json: bool
    check: bool
    quick: bool
    rounds: int
    size: int
    loopback: Loopback
    bars: bool
    plot: Path | None = None
    nodes: int = 0
    """Nodes of `starts`; 0: its default."""

    def again(self, variant: Loopback) -> list[str]:
        """The arguments of the same run on one loopback, with JSON as output."""
        flags = {"--quick": self.quick, "--no-progress": not self.bars}
        chosen = [flag for flag, on in flags.items() if on]
        return [
            *chosen, "--json", "--loopback", variant, "--rounds", str(self.rounds), "--size", str(self.size)
        ]  # fmt: skip


Measure = Callable[[Options, Progress, str], tuple[Case, ...]]


def _word(
    *,
    size: int | None = 200,
    loopback: Loopback | None = Loopback.plain,
    rounds: tuple[int, int] = (FULL_ROUNDS, QUICK_ROUNDS),
    example: str = "--quick",
    nodes: bool = False,
) -> Callable[[Measure], Measure]:
    """Make a measurement a word of the command, with its name and docstring and the options of all benches.

    `size`, `loopback`: the defaults of these options; None: it has no such option, and runs on the host's loopback.
    `rounds`: the number of interleaved rounds, and that of a quick run. `nodes`: it has an option of this name.
    """
    full, few = rounds
    times = typer.Option("--rounds", min=1, max=101, help=f"Interleaved rounds [{full}; {few} if quick].")
    options: dict[str, tuple[Any, Any]] = {
        "json": (Json, False),
        "check": (Check, False),
        "quick": (Quick, False),
        "rounds": (Annotated[int | None, times], None),
        **({} if size is None else {"size": (Size, size)}),
        **({} if loopback is None else {"loopback": (Lo, loopback)}),
        **({"nodes": (Nodes, 0)} if nodes else {}),
        "no_progress": (NoProgress, False),
        "plot": (Plot, None),
    }

    def register(measure: Measure) -> Measure:
        name = measure.__name__

        def run(**given: Any) -> None:
            count = given.pop("rounds") or (few if given["quick"] else full)
            bars = not given.pop("no_progress")
            _run(name, measure, Options(**{"size": 200, "loopback": Loopback.host, **given}, rounds=count, bars=bars))

        signature = [
            inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for word, (kind, default) in options.items()
        ]
        run.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        app.command(name, help=measure.__doc__, epilog=f"Example: muster bench {name} {example}")(run)
        return measure

    return register


@contextmanager
def _from(parts: str) -> Iterator[None]:
    """For imports that need an extra: raises `Missing` where it is not installed. `parts`: where it comes from."""
    try:
        yield
    except ImportError as error:
        raise Missing(f"{error.name} is not installed; it comes with {parts}") from None


@_word()
def limits(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """The kernel's cost per datagram: sends, GSO, receive, GRO, echo, relays. libc only, no Muster."""
    return limits_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word(loopback=Loopback.both, example="--json > peers.json")
def peers(options: Options, progress: Progress, label: str) -> tuple[Case, ...]:
    """Muster, Redis pub/sub, NATS and Mosquitto side by side: 1 publisher, 100 and 1,000 subscribers.

    Every delivery of every peer is counted and compared byte by byte. `wire` runs only the saturated loads.
    """
    loads = compare.loads(quick=options.quick, payload_bytes=options.size, saturated_only=label == "wire")
    return _beside_peers(_found_peers(ALL), loads, options, progress)


def _beside_peers(
    peers: Sequence[Peer], loads: Sequence[Load], options: Options, progress: Progress
) -> tuple[Case, ...]:
    instance = Instance()
    return compare.run(
        [
            *peers,
            Muster(instance),
            Muster(instance, "muster (clients without GRO)", gro=False),
            Muster(Instance(settings={"up.processes": TOGETHER}), compare.ONE_PROCESS),
        ],
        loads,
        rounds=options.rounds,
        quick=options.quick,
        claims=compare.claims(loads, quick=options.quick),
        progress=progress,
    )


@_word(example="--json > paced.json")
def paced(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """CPU and latency at an open schedule of 50 k to 1 M deliveries a second to 100 members, beside the peers."""
    loads = compare.paced_loads(quick=options.quick, payload_bytes=options.size)
    kinds = [kind for kind in ALL if kind is not Mosquitto]  # too slow for any of these rates
    return _beside_peers(_found_peers(kinds), loads, options, progress)


def _found_peers(kinds: Sequence[type[Peer]]) -> list[Peer]:
    found = []
    for kind in kinds:
        try:
            kind.find()
        except Missing as missing:
            _say(str(missing))
        else:
            found.append(kind())
    if not found:
        raise Missing("no peer is installed: apt-get install redis-server nats-server mosquitto")
    return found


@_word(size=256)
def receive(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """CPU per packet from the socket to the route, against a bare drain, uvloop and decryption alone."""
    return receive_bench.run(rounds=options.rounds, quick=options.quick, datagram_bytes=options.size, progress=progress)


@_word(example="--json > overload.json")
def overload(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Twice the capacity: the share still delivered, its age, and the delay of the loops."""
    return overload_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word()
def memory(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Bytes and CPU of idle sessions at the gateway, from the slope over their number: resident, and allocated."""
    return memory_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word()
def hops(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """CPU per delivered message over all roles, against three blocking raw relays."""
    return hops_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word()
def fanout(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """The gateway alone: one datagram per delivery against raw sendmmsg, bundles, GSO; by clients and sizes."""
    return fanout_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word(size=None, loopback=None)
def scale(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Costs of membership, a broker's start, doublings and maps as they grow; then recovery after deaths.

    The first part runs in memory, without sockets. Unless `--quick`, processes follow: `rejoin` once, `failover` three
    times.
    """
    return scale_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word()
def commands(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """100,000 reliable commands by 5,000 users over lossy links: each delivered once or reported, and the time it
    takes."""
    if options.size > COMMAND_BYTES_MAX:
        raise typer.BadParameter(f"a command has at most {COMMAND_BYTES_MAX} bytes", param_hint="--size")
    return commands_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word()
def edge(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Browsers over WebSocket beside Centrifugo: CPU and time of a delivery in both encodings, memory of a session."""
    return edge_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word(size=None)
def browsers(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """What single clients of an edge get: answers to subscribe, a slow neighbour, TLS, the return after an edge dies,
    messages of programs."""
    return browsers_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word()
def http(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Publishes and event streams over HTTP, beside redis-py behind the same framework."""
    return http_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word()
def isolation(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Effects of a room of 100,000 members, and of a stopped member, on the others: their p99, and the gateway's
    memory."""
    return isolation_bench.run(
        rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress
    )


@_word(rounds=(failover_bench.ROUNDS, failover_bench.ROUNDS_QUICK))
def failover(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """One of two nodes of each role dies or stands still under a steady load: the time until all members are served
    again."""
    return failover_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word()
def rejoin(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """A gateway with 20,000 members dies: the time until all are at the other one, and that gateway's load."""
    return rejoin_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word()
def nodes(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Brokers and routers 4x2 against one of each, two gateways against one: CPU per delivery, and throughput."""
    return nodes_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word(size=None, loopback=None, rounds=(1, 1), nodes=True, example="--nodes 1000")
def starts(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Many nodes start together on a real ZooKeeper: time until all know all, requests of each, CPU of a change."""
    return starts_bench.run(rounds=options.rounds, quick=options.quick, nodes=options.nodes, progress=progress)


@_word()
def loss(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """1 % lost, 1 % reordered and 1 % doubled on every link: each message once, and the remaining throughput."""
    return loss_bench.run(rounds=options.rounds, quick=options.quick, payload_bytes=options.size, progress=progress)


@_word(size=None, loopback=None)
def fleet(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Fair picks of 100 clients of 20,000 and 1,000,000, beside NumPy's weighted choice and SQLite's random order.

    Then a whole fleet: 19,900 clients (2,000 if quick) over mosquitto, and 1,000 (100) tasks a minute of 100 clients each.
    """
    with _from("muster-server[fleet]"):
        from bench import fleet_load, fleet_picks
    picks = fleet_picks.run(rounds=options.rounds, quick=options.quick, progress=progress)
    return (*picks, *fleet_load.run(quick=options.quick, progress=progress))


@_word(size=None, loopback=None)
def messages(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Delayed messages: accepted durably, fired on time, back after a death; beside a Redis pump, dramatiq and NATS.

    10,000,000 messages are pending (500,000 if quick). TMPDIR must be on a disk, where a sync takes time.
    """
    with _from("muster-server[messages] and the tools"):
        from bench import messages as messages_bench
    return messages_bench.run(rounds=options.rounds, quick=options.quick, say=_say, progress=progress)


@_word(size=None, loopback=None)
def likes(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Likes: durable toggles, counts and rankings while they run, memory, a restart; beside Redis with the same client.

    10,000,000 likes for memory and restart (600,000 if quick). TMPDIR must be on a disk, where a sync takes time.
    """
    return likes_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word(size=None, loopback=None)
def presence(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Presence: events into the store, look-ups of 1,000 users, a writer's restart, bytes a user; beside redis-py.

    1,000,000 users for the bytes (50,000 if quick).
    """
    with _from("muster-server[presence]"):
        from bench import presence as presence_bench
    return presence_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word(size=None, loopback=None)
def unicast(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Messages to one user beside messages of a room with one member: servers' CPU, rate, latency."""
    from bench import unicast as unicast_bench

    return unicast_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word()
def sdk(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """What a message costs a Python program: reading, waiting for it, publishing; beside redis-py and nats-py."""
    with _from("muster-server[bench]"):
        from bench import sdk as sdk_bench
    return sdk_bench.run(
        rounds=options.rounds, quick=options.quick, say=_say, payload_bytes=options.size, progress=progress
    )


@_word(size=None, loopback=None)
def tasks(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """No-op tasks a second, and from `send` to the handler; beside dramatiq and streaq."""
    with _from("muster-server[bench,messages]"):
        from bench import tasks as tasks_bench
    return tasks_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word(size=None, loopback=None)
def console(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """CPU of all nodes for each open page of the web console, beside the same instance without one; needs Chromium."""
    from bench import console as console_bench

    return console_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word(size=None, loopback=None)
def inbox(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """Entries a second, from POST to an event stream, a page of 50, and a broadcast to 10,000 streams.

    TMPDIR must be on a disk, where a sync takes time.
    """
    with _from("muster-server[bench,http,database]"):
        from bench import inbox as inbox_bench
    return inbox_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word(size=None, loopback=None)
def portal(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """The portal of examples/portal: what its cache saves, when open pages hear of a reply, how old a page may be.

    Only in the source tree.
    """
    with _from("the tools of the source tree"):
        from bench import portal as portal_bench
    return portal_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@_word(size=None, loopback=None)
def cache(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
    """What the cache costs and keeps: hits, loads of a miss, drops, a scan; beside cashews, aiocache and dogpile.cache."""
    with _from("muster-server[bench,cache]"):
        from bench import cache as cache_bench
    return cache_bench.run(rounds=options.rounds, quick=options.quick, progress=progress)


@app.command("all", epilog="Example: muster bench all --quick")
def every(
    names: Annotated[list[str] | None, typer.Argument(metavar="BENCH", help="These alone.")] = None,
    folder: Annotated[
        Path, typer.Option("--to", metavar="DIR", file_okay=False, help="Folder of the documents, one for each bench.")
    ] = Path("bench-figures"),
    json: Annotated[bool, typer.Option("--json", help="All documents on stdout.")] = False,
    check: Check = False,
    quick: Annotated[bool, typer.Option("--quick", help="Quick runs: an hour in all.")] = False,
    no_progress: NoProgress = False,
    plot: Plot = None,
) -> None:
    """Run all benches one after another, and print the goals of all as Markdown tables.

    Documents that are in the folder already are used again: a run that was interrupted goes on. Remove the folder to
    measure again.
    """
    _check_names(names)
    known = [name for name in _names() if name not in NO_BENCHES]
    try:
        outcomes = every_bench.run(names or known, folder, quick=quick, progress=for_terminal(not no_progress))
    except OSError as error:
        _say(str(error))
        raise typer.Exit(EXIT_FAILURE) from None
    reports = [each.report for each in outcomes if each.report is not None]
    _draw(reports, plot)
    missing = {each.name: each.why for each in outcomes if each.why}  # without figures that judge, and the reason
    if json:
        typer.echo(dumps({"benches": [each.as_dict() for each in reports], "missing": missing}))
    else:
        typer.echo(markdown([each for each in reports if not each.void], plot.name if plot else None))
    for name, why in missing.items():
        _say(f"{name}: {why}")
    failed = any(each.code not in {0, EXIT_UNAVAILABLE, EXIT_TRY_LATER} for each in outcomes)
    if failed or (check and (missing or not all(report.holds for report in reports))):
        raise typer.Exit(EXIT_FAILURE)


@app.command("compare", epilog="Example: muster bench compare --baseline v0.3.0 fanout")
def beside_earlier(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="BENCH", help=f"Instead of {', '.join(earlier_bench.CHEAP)}.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="COMMIT", help="The earlier commit, instead of the one that bench/baseline names."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=2, max=21, help="Quick rounds of each tree, in turns.")] = 3,
    json: Json = False,
    no_progress: NoProgress = False,
    plot: Plot = None,
) -> None:
    """Measure this tree beside an earlier commit, in turns; exit with 1 where a goal's figure is worse by over 10 %.

    The earlier commit is built once, below .tools. A figure counts as worse only if all its rounds are.
    """
    _check_names(names)

    def measure(options: Options, progress: Progress, _label: str) -> tuple[Case, ...]:
        try:
            tree = earlier_bench.built(baseline or earlier_bench.baseline(), _say)
        except earlier_bench.NoBaseline as error:
            raise Missing(str(error)) from None
        return earlier_bench.compare(names or earlier_bench.CHEAP, tree, options.rounds, progress)

    _run("compare", measure, Options(json, True, True, rounds, 0, Loopback.host, not no_progress, plot))


def _check_names(names: Sequence[str] | None) -> None:
    known = [name for name in _names() if name not in NO_BENCHES]
    for name in names or ():
        if name not in known:
            expected = earlier_bench.RENAMED.get(name) or f"one of {', '.join(known)}"
            raise typer.BadParameter(f"unknown bench {name!r} (expected {expected})", param_hint="BENCH")


def _names() -> list[str]:
    """The words of this command, in their order."""
    return [each.name or str(getattr(each.callback, "__name__", "")) for each in app.registered_commands]


@app.command(epilog="Example: muster bench table peers.json paced.json overload.json")
def table(
    files: Annotated[
        list[Path], typer.Argument(exists=True, dir_okay=False, help="Output of benches with --json, a file each.")
    ],
    plot: Plot = None,
) -> None:
    """Print the goals of documents made with --json as Markdown tables. Measures nothing."""
    reports = []
    for file in files:
        try:
            reports.append(Report.from_json(file.read_text()))
        except (ValueError, KeyError, TypeError):
            _say(f"{file}: no document of a bench; write one by `muster bench … --json > {file}`")
            raise typer.Exit(EXIT_FAILURE) from None
    _draw(reports, plot)
    typer.echo(markdown(reports, plot.name if plot else None))


def _draw(reports: Sequence[Report], folder: Path | None) -> None:
    """Draw what the reports have figures for, if a folder is given."""
    if folder is None:
        return
    try:
        drawn = draw(reports, folder)
    except ModuleNotFoundError as error:
        _say(f"--plot: {error.name} is not installed; it comes with muster-server[bench]")
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except OSError as error:
        _say(f"--plot {folder}: {error.strerror or error}")
        raise typer.Exit(EXIT_FAILURE) from None
    for file in drawn:
        _say(f"drew {file}")
    if not drawn:
        _say("--plot: nothing to draw: no goal, and no figure at two sizes")


def _run(name: str, measure: Measure, options: Options) -> None:
    """Enter the namespace, measure, print, and turn a failure into an exit code and one line."""
    try:
        report = _both(name, options) if options.loopback is Loopback.both else _once(name, measure, options)
    except VoidRunError as error:
        if options.json:
            typer.echo(Report(name, machine.describe().as_dict(), (), void=str(error)).as_json())
        _say(str(error))
        raise typer.Exit(EXIT_TRY_LATER) from None
    except (Missing, netns.NotPossibleError) as error:
        _say(str(error))
        raise typer.Exit(EXIT_UNAVAILABLE) from None
    except (ChildFailedError, OSError) as error:
        _say(str(error))
        raise typer.Exit(EXIT_FAILURE) from None
    if options.json:
        typer.echo(report.as_json())
    else:
        report.show(Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH))
    _draw([report], options.plot)
    if options.check and not report.holds:
        raise typer.Exit(EXIT_FAILURE)
    if report.gaps:
        _say(f"{report.gaps}; try again on a quieter machine")
        raise typer.Exit(EXIT_TRY_LATER)


def _once(name: str, measure: Measure, options: Options) -> Report:
    label = _enter(options.loopback)
    before = machine.Times.now()
    cases = measure(options, for_terminal(options.bars), label)
    run: dict[str, object] = {"loopback": label, "rounds": options.rounds, "quick": options.quick}
    run["payload_bytes"] = options.size
    run.update(machine.Times.now().since(before))
    if pin.alone():
        run["cores"] = "one: driver and servers share it"
    return Report(name, {**machine.describe().as_dict(), "run": run}, cases)


def _enter(loopback: Loopback) -> str:
    """Return the loopback of this run. If `plain` is not available, use the host's own and say so."""
    inside = netns.inside()
    if inside:
        return inside
    if loopback is Loopback.host:
        return "host"
    try:
        netns.enter(cast(netns.Variant, loopback.value))
    except netns.NotPossibleError as error:
        if loopback is Loopback.wire:
            raise
        _say(f"{error}; measuring on the host's loopback")
    return "host"


def _both(name: str, options: Options) -> Report:
    """Run the same bench on each loopback and merge the reports. If `wire` is not available, leave it out and say
    so."""
    parts: dict[str, Report] = {}
    for variant in (Loopback.plain, Loopback.wire):
        try:
            netns.command(cast(netns.Variant, variant.value))
        except netns.NotPossibleError as error:
            if variant is Loopback.wire:
                _say(f"no figures for {variant}: {error}")
                continue
        done = subprocess.run(
            [sys.executable, "-m", "bench", name, *options.again(variant)],
            stdout=subprocess.PIPE,
            env=python_environment(),
            check=False,
        )
        if done.returncode:
            raise typer.Exit(done.returncode)
        parts[variant.value] = Report.from_json(done.stdout.decode())
    return Report.joined(parts)


def _say(line: str) -> None:
    typer.echo(f"muster bench: {line}", err=True)
