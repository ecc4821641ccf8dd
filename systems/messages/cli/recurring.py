"""`muster topic recurring`: messages that are sent again and again. Owns these words; their work is in the admin."""

from typing import Annotated, Any, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl

recurring_app: Final = typer.Typer(
    help="Set, list and remove recurring messages of a topic.",
    epilog="Example: muster topic recurring set report nightly '0 3 * * *' --zone Asia/Shanghai",
    no_args_is_help=True,
)
TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]
EntryName = Annotated[str, typer.Argument(metavar="NAME")]


@recurring_app.command(
    "set", epilog="Example: muster topic recurring set report nightly '0 3 * * *' --zone Asia/Shanghai"
)
def recurring_set(
    topic: TopicName,
    name: EntryName,
    cron: Annotated[str, typer.Argument(metavar="CRON", help="Minute, hour, day, month, weekday: '0 3 * * *'.")],
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Time zone of the schedule, for example Asia/Shanghai.")
    ] = "UTC",
    missed: Annotated[
        str, typer.Option(metavar="WHICH", help="Missed messages to send after a stop: once (the latest), all, none.")
    ] = "once",
    data: Annotated[str, typer.Option(metavar="JSON", help="The body of each message.")] = "{}",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Have a message sent at these times. Setting the same again changes nothing."""
    import msgspec

    from muster_server.control.errors import USAGE, UserError
    from muster_server.systems.messages.recurring import Entry, NewEntry

    try:
        msgspec.json.decode(data)
    except msgspec.MsgspecError as error:
        why = f'invalid --data: {error} (expected one JSON value, as \'{{"kind": "sales"}}\')'
        raise UserError(f"recurring message {name!r:.80}: {why}", USAGE) from None
    try:
        given = {"topic": topic, "name": name, "cron": cron, "zone": zone, "missed": missed, "body": data.encode()}
        asked = msgspec.convert(given, NewEntry)
    except msgspec.MsgspecError as error:
        raise UserError(f"recurring message {name!r:.80}: {error}", USAGE) from None
    return _print([_ask("recurring-put", asked, Entry, registry, config)], json)


@recurring_app.command("ls", epilog="Example: muster topic recurring ls report")
def recurring_ls(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="All topics without one.")] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List recurring messages and when each occurs next."""
    from muster_server.systems.messages.recurring import Entry

    return _print(_ask("recurring", topic, list[Entry], registry, config), json)


@recurring_app.command("rm", epilog="Example: muster topic recurring rm report nightly")
def recurring_rm(topic: TopicName, name: EntryName, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Remove a recurring message, and cancel the one that waits."""
    from muster_server.systems.messages.recurring import Entry

    _ask("recurring-remove", (topic, name), Entry, registry, config)
    return 0


def _ask(question: str, asked: Any, kind: Any, registry: Any, config: Any) -> Any:
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import ask

    return ask(Target(config, registry), lambda _, admin: admin.ask(question, asked, kind))


def _print(entries: list[Any], as_json: bool) -> int:
    import msgspec

    from muster_server.control.host.shown import one_line
    from muster_server.control.terminal import common
    from muster_server.systems.messages.cli.commands import moment

    with common.verdict_after():
        if as_json:
            common.print_json(
                [
                    {**msgspec.to_builtins(each.asked), "body": each.asked.body.decode(), "last": each.last}
                    for each in entries
                ]
            )
            return 0
        for each in entries:
            asked = each.asked
            print(one_line(f"{asked.topic} {asked.name}: {asked.cron} {asked.zone}, {moment(each.last)}"))
    return 0
