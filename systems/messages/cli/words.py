"""The subcommands of delayed messages: `muster topic …` and `muster delay …`.

Their work is in `commands.py`, imported when one is used.
"""

from typing import Annotated, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl
from muster_server.systems.messages.cli.recurring import recurring_app

topic_app: Final = typer.Typer(
    help="Create, list and remove topics of delayed messages.",
    epilog="Example: muster topic create orders --callback https://shop.example/hook",
    no_args_is_help=True,
)
delay_app: Final = typer.Typer(
    help="Send, show, cancel, postpone, advance and list delayed messages.",
    epilog="Example: muster delay send orders '{\"order\": 7}' --in 30m",
    no_args_is_help=True,
)
dead_app: Final = typer.Typer(
    help="List, replay and drop messages whose attempts all failed.",
    epilog="Example: muster delay dead ls orders",
    no_args_is_help=True,
)
tag_app: Final = typer.Typer(
    help="Count, cancel and move the waiting messages of a topic that have a tag.",
    epilog="Example: muster delay tag cancel orders summer",
    no_args_is_help=True,
)
RETRIES: Final = "1s,10s,60s,300s,3000s"
"""The default of `--retries`: that of a topic."""
TopicName = Annotated[str, typer.Argument(metavar="TOPIC")]
TagName = Annotated[str, typer.Argument(metavar="TAG")]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC…", help="Names; all of them get the same settings.")]
MessageId = Annotated[str, typer.Argument(metavar="ID")]
After = Annotated[str, typer.Option(metavar="NEXT", help="Only messages after a page, as given at its end.")]
OfTopic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Topic of the message; needed if there are several topics."),
]


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(topic_app, name="topic")
    app.add_typer(delay_app, name="delay")
    topic_app.add_typer(recurring_app, name="recurring")
    delay_app.add_typer(dead_app, name="dead")
    delay_app.add_typer(tag_app, name="tag")


@topic_app.command("create", epilog="Example: muster topic create orders --callback https://shop.example/hook")
def topic_create(
    names: TopicNames,
    callback: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="Target of its messages: https://…, http://…, room:NAME, user:ID, kafka:TOPIC; pull: programs lease them; "
            "topics:NAME,NAME: these topics get them.",
        ),
    ],
    secret: Annotated[
        str, typer.Option(metavar="SECRET", help="whsec_… that signs its callbacks [a new one, which is printed].")
    ] = "",
    workers: Annotated[
        int, typer.Option(min=0, max=1_000, help="Number of workers that fire its messages; 0: all.")
    ] = 0,
    policy: Annotated[
        str,
        typer.Option(
            metavar="POLICY",
            help="Policy for choosing workers: random, round-robin, weighted-round-robin, weighted-random, "
            "least-loaded.",
        ),
    ] = "weighted-round-robin",
    retries: Annotated[
        str, typer.Option(metavar="LENGTHS", help="Delays between attempts, for example 1s,10s,1m; none: one attempt.")
    ] = RETRIES,
    jitter: Annotated[
        int, typer.Option(min=0, max=1_000, help="Longest random extension of these delays, in thousandths.")
    ] = 100,
    timeout: Annotated[float, typer.Option(min=0.1, max=60, help="Limit of one callback in seconds.")] = 10.0,
    allow: Annotated[
        str,
        typer.Option(
            metavar="NETWORKS",
            help="Private networks that its callbacks may reach, for example 10.1.0.0/16,10.2.0.0/16.",
        ),
    ] = "",
    retry_after_max: Annotated[
        str, typer.Option(metavar="LENGTH", help="Longest pause that a target may request by Retry-After.")
    ] = "10m",
    rate: Annotated[
        float, typer.Option(min=0, max=1_000_000, help="Limit of messages fired or leased per second; 0: no limit.")
    ] = 0.0,
    concurrency: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Limit of messages in progress at once; 0: no limit.")
    ] = 0,
    per_key: Annotated[
        int,
        typer.Option(min=0, max=1_000, help="Limit of open messages of one key; 1: one after another; 0: no limit."),
    ] = 0,
    rate_per_key: Annotated[
        float, typer.Option(min=0, max=1_000_000, help="Limit of messages of one key per second; 0: no limit.")
    ] = 0.0,
    dead_stops_key: Annotated[
        bool, typer.Option("--dead-stops-key", help="A dead letter holds up its key until it is replayed or dropped.")
    ] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Create topics and print their secrets. Creating the same topic again succeeds."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import Settings, create

    where = Target(config, registry)
    settings = Settings(
        callback,
        workers,
        policy,
        retries,
        jitter,
        timeout,
        allow,
        retry_after_max,
        rate,
        concurrency,
        per_key,
        rate_per_key,
        dead_stops_key,
    )
    return create(where, names, secret, settings, json)


@topic_app.command("change", epilog="Example: muster topic change orders --rotate --overlap 24h")
def topic_change(
    name: TopicName,
    callback: Annotated[
        str | None, typer.Option(metavar="TARGET", help="New target of its messages, including waiting ones.")
    ] = None,
    secret: Annotated[
        str | None, typer.Option(metavar="SECRET", help="whsec_… that signs its callbacks from now on.")
    ] = None,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new secret, and print it.")] = False,
    overlap: Annotated[
        str | None,
        typer.Option(
            metavar="LENGTH",
            help="Time for which the former secret signs too [24h]; 0s: stop now, even without a new secret.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, max=1_000, help="Number of workers that fire its messages; 0: all.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Policy for choosing workers; as for `topic create`.")
    ] = None,
    retries: Annotated[
        str | None,
        typer.Option(metavar="LENGTHS", help="Delays between attempts, for example 1s,10s,1m; none: one attempt."),
    ] = None,
    jitter: Annotated[
        int | None, typer.Option(min=0, max=1_000, help="Longest random extension of these delays, in thousandths.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, max=60, help="Limit of one callback in seconds.")] = None,
    allow: Annotated[
        str | None, typer.Option(metavar="NETWORKS", help="Private networks that its callbacks may reach.")
    ] = None,
    retry_after_max: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Longest pause that a target may request by Retry-After.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(min=0, max=1_000_000, help="Limit of messages fired or leased per second; 0: no limit."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=0, max=1_000_000, help="Limit of messages in progress at once; 0: no limit.")
    ] = None,
    per_key: Annotated[
        int | None,
        typer.Option(min=0, max=1_000, help="Limit of open messages of one key; 1: one after another; 0: no limit."),
    ] = None,
    rate_per_key: Annotated[
        float | None, typer.Option(min=0, max=1_000_000, help="Limit of messages of one key per second; 0: no limit.")
    ] = None,
    dead_stops_key: Annotated[
        bool | None,
        typer.Option(
            "--dead-stops-key/--dead-passes-key",
            help="Whether a dead letter holds up its key until it is replayed or dropped.",
        ),
    ] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Change settings of a topic; options that are not given stay unchanged. The change applies to waiting messages,
    too."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import Settings, change_topic

    settings = Settings(
        callback,
        workers,
        policy,
        retries,
        jitter,
        timeout,
        allow,
        retry_after_max,
        rate,
        concurrency,
        per_key,
        rate_per_key,
        dead_stops_key,
    )
    return change_topic(Target(config, registry), name, secret, rotate, overlap, settings, json)


@topic_app.command("pause", epilog="Example: muster topic pause orders")
def topic_pause(name: TopicName, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Let a topic's messages wait, also when they are due. Callbacks that run end as they would."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import pause

    return pause(Target(config, registry), name, True, json)


@topic_app.command("resume", epilog="Example: muster topic resume orders")
def topic_resume(name: TopicName, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Fire a paused topic's messages again, first those that are overdue."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import pause

    return pause(Target(config, registry), name, False, json)


@topic_app.command("show", epilog="Example: muster topic show orders")
def topic_show(name: TopicName, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show a topic's settings, its backlog, and the targets that get nothing now, with the reason."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import show_topic

    return show_topic(Target(config, registry), name, json)


@topic_app.command("ls", epilog="Example: muster topic ls --json")
def topic_ls(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """List the topics."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import topics

    return topics(Target(config, registry), json)


@topic_app.command("rm", epilog="Example: muster topic rm orders")
def topic_rm(
    name: TopicName,
    forget_dead: Annotated[
        bool, typer.Option("--forget-dead", help="Drop its dead letters: no command can reach them afterwards.")
    ] = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Remove a topic that has no waiting message and no dead letter."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import remove

    return remove(Target(config, registry), name, forget_dead)


@topic_app.command("stats", epilog="Example: muster topic stats orders")
def topic_stats(name: TopicName, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show the figures of each of the last minutes, and the backlog by due time."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import stats

    return stats(Target(config, registry), name, json)


@delay_app.command("send", epilog="Example: muster delay send orders '{\"order\": 7}' --in 30m --id order-7")
def delay_send(
    topic: TopicName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The body; - reads stdin.")],
    after: Annotated[
        str | None, typer.Option("--in", metavar="LENGTH", help="Due after this: 500ms, 2s, 30m, 1h, 7d [at once].")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Due at this time, for example 2027-01-01T00:00:00+08:00.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="Id of the message; sending the same id again changes nothing [a new one]."
        ),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="LENGTH", help="Longest random delay after the due time, to spread load.")
    ] = "0s",
    expires: Annotated[
        str | None,
        typer.Option(metavar="LENGTH", help="Drop the message if it has not fired after this time from now."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="Target instead of the topic's: https://…, http://…, room:NAME, user:ID, kafka:TOPIC.",
        ),
    ] = "",
    kind: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="Media type of the body [application/json if it is JSON].")
    ] = "",
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY", help="Messages of one key go one after another, or a few at once, as the topic says."
        ),
    ] = "",
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="A tag of the message; repeat it for more, up to 8."),
    ] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Send a message, and print its id and due time once it is durable."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import send

    return send(
        Target(config, registry), topic, text, after, at, id, window, expires, target, kind, key, tag or [], json
    )


@delay_app.command("show", epilog="Example: muster delay show order-7")
def delay_show(
    id: MessageId, topic: OfTopic = None, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Show a message. Exit code 6: unknown, or forgotten after its end."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import show

    return show(Target(config, registry), id, topic, json)


@delay_app.command("cancel", epilog="Example: muster delay cancel order-7")
def delay_cancel(
    id: MessageId, topic: OfTopic = None, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Withdraw a message. Exit code 0: done; 5: already fired or ended; 6: unknown, and withdrawn if it comes."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import change

    return change(Target(config, registry), id, topic, "cancel", None, None, json)


@delay_app.command("postpone", epilog="Example: muster delay postpone order-7 --by 10m")
def delay_postpone(
    id: MessageId,
    by: Annotated[str | None, typer.Option(metavar="LENGTH", help="Move the due time later by this time.")] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="Move the due time to this time.")] = None,
    topic: OfTopic = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Move a message's due time later. Exit code 0: done; 5: already fired or ended; 6: unknown, and moved if it comes."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import change

    return change(Target(config, registry), id, topic, "postpone", by, to, json)


@delay_app.command("advance", epilog="Example: muster delay advance order-7 --to now")
def delay_advance(
    id: MessageId,
    by: Annotated[str | None, typer.Option(metavar="LENGTH", help="Move the due time earlier by this time.")] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="Move the due time to this time, or now.")] = None,
    topic: OfTopic = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Move a message's due time earlier. Exit code 0: done; 5: already fired or ended; 6: unknown, and moved if it
    comes."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import change

    return change(Target(config, registry), id, topic, "advance", by, to, json)


@delay_app.command("ls", epilog="Example: muster delay ls orders --due 1h --state scheduled")
def delay_ls(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Name of a topic [all].")] = "",
    due: Annotated[
        str | None, typer.Option(metavar="LENGTH", help="Only messages due, or retried, within this time [any].")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="scheduled, firing, done, dead, withdrawn; repeat it for more [scheduled, firing]."
        ),
    ] = None,
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only messages with this tag [any].")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Number of messages to show, the earliest first.")] = 100,
    after: After = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List messages by time, and print their total number; with --tag, in pages that look at up to 5,000 messages."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import ls

    return ls(Target(config, registry), topic, due, state, tag, limit, after, json)


@tag_app.command("count", epilog="Example: muster delay tag count orders summer")
def tag_count(
    topic: TopicName, tag: TagName, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Count the waiting messages of a topic that have a tag."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.tags import tagged

    return tagged(Target(config, registry), topic, tag, "count", None, json)


@tag_app.command("cancel", epilog="Example: muster delay tag cancel orders summer")
def tag_cancel(
    topic: TopicName, tag: TagName, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Withdraw the waiting messages of a topic that have a tag and were sent before. Progress is on stderr.

    Ctrl-C ends it where it is; run it again to go on.
    """
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.tags import tagged

    return tagged(Target(config, registry), topic, tag, "cancel", None, json)


@tag_app.command("move", epilog="Example: muster delay tag move orders summer --to 2027-01-01T00:00:00+00:00")
def tag_move(
    topic: TopicName,
    tag: TagName,
    to: Annotated[str, typer.Option(metavar="TIME", help="The new due time, or now.")],
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Move the waiting messages of a topic that have a tag to one due time. Progress is on stderr.

    Ctrl-C ends it where it is; run it again to go on.
    """
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.tags import tagged

    return tagged(Target(config, registry), topic, tag, "move", to, json)


@delay_app.command("scrub", epilog="Example: muster delay scrub --json")
def delay_scrub(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Check every message and body of the schedule while it serves. Exit code 1: it is damaged."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import scrub

    return scrub(Target(config, registry), json)


@dead_app.command("ls", epilog="Example: muster delay dead ls orders")
def dead_ls(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="Name of a topic [all].")] = "",
    limit: Annotated[
        int, typer.Option(min=1, max=1_000, help="Number of letters to show, the earliest due first.")
    ] = 100,
    after: After = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List dead letters with the last answers of their targets."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import dead

    return dead(Target(config, registry), topic, limit, after, json)


@dead_app.command("show", epilog="Example: muster delay dead show order-7")
def dead_show(
    id: MessageId, topic: OfTopic = None, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Show one dead letter. Exit code 6: no dead letter has this id."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import dead_one

    return dead_one(Target(config, registry), topic or "", id, json)


@dead_app.command("replay", epilog="Example: muster delay dead replay order-7")
def dead_replay(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…")] = None,
    topic: OfTopic = None,
    all: Annotated[bool, typer.Option("--all", help="Replay all dead letters of the topic.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Schedule dead letters again, due now, with all their attempts. Exit code 6: an id is not a dead letter.

    --all takes the letters that are dead at its start; one that dies again meanwhile stays dead.
    """
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import letters

    return letters(Target(config, registry), "replay", topic, ids or [], all, json)


@dead_app.command("drop", epilog="Example: muster delay dead drop order-7")
def dead_drop(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…")] = None,
    topic: OfTopic = None,
    all: Annotated[bool, typer.Option("--all", help="Drop all dead letters of the topic.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Give dead letters up: they are cancelled and cannot be replayed. Exit code 6: an id is not a dead letter.

    --all takes the letters that are dead at its start; one that dies meanwhile stays.
    """
    from muster_server.control.terminal.found import Target
    from muster_server.systems.messages.cli.commands import letters

    return letters(Target(config, registry), "drop", topic, ids or [], all, json)
