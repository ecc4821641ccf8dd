"""The command of probes: `muster links`, which shows links and probed paths."""

from typing import Annotated, Final

import typer

from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal.choices import Served
from muster_server.control.terminal.options import ConfigFile, Json, NodeAddress, RegistryUrl

links_app: Final = typer.Typer()


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.registered_commands.extend(links_app.registered_commands)


@links_app.command(epilog="Example: muster links --worst 20")
def links(
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with 1 if a link breaks a limit of [links] `failures` times in a row."),
    ] = False,
    probe: Annotated[
        float | None,
        typer.Option(
            "--probe",
            min=1,
            max=3600,
            metavar="SECONDS",
            help="Probe every path for this time, and show the paths.",
        ),
    ] = None,
    role: Annotated[
        Served | None, typer.Option("--role", metavar="ROLE", help="Only links from or to nodes of this role.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--of", metavar="NAME", help="Only links from or to the node with this name or number."),
    ] = None,
    worst: Annotated[
        int | None, typer.Option("--worst", min=1, metavar="COUNT", help="Show only the COUNT worst links.")
    ] = None,
    node: NodeAddress = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show every link between nodes, worst first: round trip, loss, availability, and broken limits.

    With --probe, also every path of a proxy, a broker and a gateway.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.probes.cli.links import Wanted, show

    if watch and (check or probe is not None):
        raise UserError(f"--watch excludes {'--check' if check else '--probe'}", USAGE)
    if node is not None and probe is not None:
        raise UserError("--probe excludes --node: probes need the registry", USAGE)
    wanted = Wanted(None if role is None else role.value, name, worst)
    work = show(Target(config, registry, node=node), wanted, as_json=json, watch=watch, check=check, probe_s=probe)
    return common.run(work, endless=watch, streams=watch)
