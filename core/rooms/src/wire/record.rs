//! Records of rooms in the reliable control log, on sessions and on links.

use muster_transport::{Access, Addr, Code, ControlRecord, Encode, Reader, Scope, SystemRecord, Writer, GUEST_KINDS};

use crate::command::{Ask, CommandId, Hop, Outcome, Page, Verdict, COMMAND_BYTES_MAX, HOPS_MAX, USERS_MAX};
use crate::filter::Filter;
use crate::wire::publish::Positions;
use crate::wire::room::STREAMS_MAX;
use crate::wire::stream::StreamGap;

/// Maximum number of gaps in a reply to a join: one for each stream that the member names and one for each that the
/// room has. With everything else that is 712 bytes.
pub const JOIN_GAPS: usize = 2 * STREAMS_MAX;

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $kind:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        enum $name { $($(#[$item])* $kind = $value,)* }
        impl $name {
            fn from_u8(value: u8) -> Option<Self> {
                match value { $($value => Some($name::$kind),)* _ => None }
            }
        }
    };
}

kinds! {
    /// First byte of a record.
    Kind {
        Join = 4,
        Joined = 5,
        Leave = 6,
        Open = 7,
        Opened = 8,
        Close = 9,
        Command = 10,
        CommandDone = 11,
        CommandTold = 12,
        CommandTaken = 13,
        Count = 14,
        Counted = 15,
        SnapshotBegin = 16,
        Membership = 17,
        SnapshotEnd = 18,
        Covered = 19,
        GatewayBegin = 20,
        GatewayMembership = 21,
        GatewayEnd = 22,
        GatewayGone = 23,
        Complete = 24,
        RoomRefused = 26,
        Subscribe = 27,
        Unsubscribe = 28,
        GatewaySeen = 29,
        LinkCommand = 30,
        LinkCommandDone = 31,
        LinkCount = 32,
        LinkCounted = 33,
        BrokerTold = 34,
        Namespace = 40,
        Ages = 41,
        End = 42,
        LinkEnd = 43,
        Headers = 44,
        Filter = 45,
        Relays = 46,
        RelayedBy = 47,
        RelayAsked = 48,
        RelayAnswer = 49,
        RelayTaken = 50,
    }
}

/// Whether a gateway has members in a room, as of `version`. `check` is the second half of the hash of the room's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Membership {
    pub room: u64,
    pub check: u64,
    pub version: u64,
    pub present: bool,
}

impl Membership {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Membership {
            room: reader.u64()?,
            check: reader.u64()?,
            version: reader.number()?,
            present: reader.u8()? != 0,
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let Membership {
            room,
            check,
            version,
            present,
        } = *self;
        writer.u64(room).u64(check).u64(version).u8(u8::from(present));
    }
}

fn read_command(reader: &mut Reader<'_>) -> Option<CommandId> {
    Some(CommandId {
        user: reader.u64()?,
        number: reader.u64()?,
    })
}

fn write_command<'w, 'b>(command: &CommandId, writer: &'w mut Writer<'b>) -> &'w mut Writer<'b> {
    writer.u64(command.user).u64(command.number)
}

fn read_data<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    reader.bytes16().filter(|data| data.len() <= COMMAND_BYTES_MAX)
}

/// A member query: whether users must be named (1 B), and from which one on (8 B).
fn read_count(reader: &mut Reader<'_>) -> Option<Ask<'static>> {
    let (users, from) = (reader.u8()?, reader.u64()?);
    Some(Ask::Count {
        from: (users != 0).then_some(from),
    })
}

fn write_ask(ask: &Ask<'_>, writer: &mut Writer<'_>) {
    match ask {
        Ask::Tell(data) => writer.bytes16(data),
        Ask::Count { from } => writer.u8(u8::from(from.is_some())).u64(from.unwrap_or(0)),
        Ask::End { user } => writer.u64(*user),
    };
}

fn read_page(reader: &mut Reader<'_>) -> Option<Page> {
    let (more, count) = (reader.u8()? != 0, usize::from(reader.u8()?));
    if count > USERS_MAX {
        return None;
    }
    let users = (0..count).map(|_| reader.u64()).collect::<Option<_>>()?;
    let count = usize::from(reader.u8()?);
    if count > HOPS_MAX {
        return None;
    }
    let mut hop = || {
        Some(Hop {
            node: reader.u32()?,
            took_us: reader.u32()?,
        })
    };
    let hops = (0..count).map(|_| hop()).collect::<Option<_>>()?;
    Some(Page { users, more, hops })
}

fn write_page(page: Option<&Page>, writer: &mut Writer<'_>) {
    let Some(page) = page else { return };
    let users = &page.users[..page.users.len().min(USERS_MAX)];
    writer.u8(u8::from(page.more)).u8(users.len() as u8);
    users.iter().for_each(|user| {
        writer.u64(*user);
    });
    let hops = &page.hops[..page.hops.len().min(HOPS_MAX)];
    writer.u8(hops.len() as u8);
    hops.iter().for_each(|hop| {
        writer.u32(hop.node).u32(hop.took_us);
    });
}

/// Verdict (1 B), code (1 B, 0 unless refused), members (4 B).
fn read_outcome(reader: &mut Reader<'_>) -> Option<Outcome> {
    let (verdict, code, members) = (reader.u8()?, reader.u8()?, reader.u32()?);
    let verdict = match verdict {
        0 => Verdict::Delivered,
        1 => Verdict::NoMember,
        2 => Verdict::Expired,
        3 => Verdict::Refused(Code::from_u8(code)),
        _ => return None,
    };
    Some(Outcome { verdict, members })
}

fn write_outcome<'w, 'b>(outcome: &Outcome, writer: &'w mut Writer<'b>) -> &'w mut Writer<'b> {
    let (verdict, code) = match outcome.verdict {
        Verdict::Delivered => (0, 0),
        Verdict::NoMember => (1, 0),
        Verdict::Expired => (2, 0),
        Verdict::Refused(code) => (3, code as u8),
    };
    writer.u8(verdict).u8(code).u32(outcome.members)
}

/// One record, borrowed. `request` is the asker's number, echoed by the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A record that every system has.
    Control(ControlRecord<'a>),
    /// A whole record of a guest.
    Guest(&'a [u8]),
    // ---- client to gateway or proxy
    /// Joins a room: with the positions already held, or without any and with its last `history` messages first.
    Join {
        request: u32,
        name: &'a [u8],
        positions: Positions,
        history: u32,
    },
    /// The filter of the join with this request, which follows. Gateways before 0.3 drop it: so the member applies it too.
    Filter {
        request: u32,
        filter: Filter,
    },
    /// Leaves a room.
    Leave {
        handle: u32,
    },
    /// Asks for the ages of messages in this session, where known. Gateways before 0.3 drop it.
    Ages,
    // ---- client to gateway or proxy, proxy to client, broker to proxy
    /// The sender knows headers of messages. A gateway cuts them off for members that did not send it, and messages with
    /// headers wait for a proxy, and for a broker, that did. Peers before 0.3 drop it.
    Headers,
    /// Opens a room for publishing, under this incarnation.
    Open {
        request: u32,
        name: &'a [u8],
        incarnation: u64,
    },
    /// Closes this handle: everything published with it is acknowledged.
    Close {
        handle: u32,
    },
    /// A command to every member of a room, a count of them, or the end of one's sessions. `number` is random, and the same in each try.
    Command {
        number: u64,
        name: &'a [u8],
        left_ms: u32,
        ask: Ask<'a>,
    },
    /// A member has taken a command; or (`taken` is false) has no space for it, or is no member.
    CommandTaken {
        command: CommandId,
        taken: bool,
    },
    // ---- gateway or proxy to client
    /// The outcome of a command, and the members if requested. A refused one may be sent again after `retry_ms`.
    CommandDone {
        number: u64,
        outcome: Outcome,
        retry_ms: u32,
        page: Option<Page>,
    },
    /// A command to a member.
    CommandTold {
        handle: u32,
        command: CommandId,
        data: &'a [u8],
    },
    /// The member begins at place `index`, which follows `start` if the stream is known. `heads`: the first unknown
    /// offset of each stream. `gaps`: messages that a join with positions can no longer get. `whole`: every message
    /// since those positions comes or is among the gaps; for a join with history: there is no more of it, or it is as
    /// much as requested.
    Joined {
        request: u32,
        handle: u32,
        index: u64,
        start: Positions,
        heads: Vec<u64>,
        gaps: Vec<StreamGap>,
        history: u32,
        whole: bool,
    },
    /// The handle for publishing.
    Opened {
        request: u32,
        handle: u32,
    },
    // ---- gateway to router
    /// All rooms of this gateway within a scope follow, as of `version`.
    SnapshotBegin {
        scope: Scope,
        version: u64,
    },
    Membership(Membership),
    SnapshotEnd {
        scope: Scope,
        version: u64,
    },
    // ---- router to gateway or router
    /// Every broker has everything that was logged here up to this log offset.
    Covered {
        offset: u64,
    },
    // ---- router to broker or router
    GatewayBegin {
        node: u32,
        epoch: u32,
        scope: Scope,
        version: u64,
    },
    GatewayMembership {
        node: u32,
        epoch: u32,
        membership: Membership,
    },
    GatewayEnd {
        node: u32,
        epoch: u32,
        scope: Scope,
        version: u64,
    },
    // ---- router to broker
    /// A gateway's life is over within a scope.
    GatewayGone {
        node: u32,
        epoch: u32,
        scope: Scope,
    },
    /// Everything known of all gateways in a scope has been reported; to a peer, everything known at this router.
    Complete {
        scope: Scope,
    },
    // ---- broker to router
    /// Subscribes to a scope's rooms, starting with a snapshot.
    Subscribe {
        scope: Scope,
    },
    Unsubscribe,
    // ---- router to router, and to broker
    /// Whether there is a link to a gateway; sent to a broker: whether any router of the partition has one.
    GatewaySeen {
        node: u32,
        up: bool,
    },
    // ---- router to router
    /// Whether this router serves a broker.
    BrokerTold {
        node: u32,
        told: bool,
    },
    // ---- proxy to broker
    /// The number that this proxy uses in its frames for a namespace with settings.
    Namespace {
        number: u8,
        name: &'a [u8],
    },
    // ---- proxy to broker, broker to gateway
    /// A command. `session` is the sender's at its proxy, named in the reply.
    LinkCommand {
        command: CommandId,
        session: u64,
        room: u64,
        check: u64,
        left_ms: u32,
        ask: Ask<'a>,
    },
    // ---- gateway to broker, broker to proxy
    LinkCommandDone {
        command: CommandId,
        session: u64,
        outcome: Outcome,
        page: Option<Page>,
    },
    // ---- gateway to broker
    /// The sender passes rooms on to other gateways, and takes rooms by others. Brokers before 0.3 drop it.
    Relays,
    /// The gateway gets a room by the gateway `node`, or (`on` is false) not.
    RelayTaken {
        room: u64,
        node: u32,
        on: bool,
    },
    // ---- broker to gateway
    /// A room is to come by another gateway; with a node of 0, from the broker itself.
    RelayedBy {
        room: u64,
        node: u32,
        role: u8,
        addr: Addr,
    },
    // ---- gateway to gateway
    /// Asks for the messages of a broker in a room, or (`on` is false) wants them no more.
    RelayAsked {
        room: u64,
        broker: u32,
        on: bool,
    },
    /// They come from now on, or not, or no more.
    RelayAnswer {
        room: u64,
        broker: u32,
        on: bool,
    },
    // ---- router or broker to gateway
    /// The gateway's interest in a room is refused.
    RoomRefused {
        room: u64,
        code: Code,
    },
}

impl<'a> Record<'a> {
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let code = r.u8()?;
        let Some(kind) = Kind::from_u8(code) else {
            return match code {
                GUEST_KINDS.. => Some(Record::Guest(bytes)),
                _ => ControlRecord::read(bytes).map(Record::Control),
            };
        };
        let record = match kind {
            Kind::Join => Record::Join {
                request: r.u32()?,
                name: r.bytes16()?,
                positions: Positions::read(r)?,
                history: r.u32()?,
            },
            Kind::Filter => Record::Filter {
                request: r.u32()?,
                filter: Filter::read(r)?,
            },
            Kind::Leave => Record::Leave { handle: r.u32()? },
            Kind::Ages => Record::Ages,
            Kind::Headers => Record::Headers,
            Kind::Open => Record::Open {
                request: r.u32()?,
                name: r.bytes16()?,
                incarnation: r.u64()?,
            },
            Kind::Joined => {
                let (request, handle, index) = (r.u32()?, r.u32()?, r.number()?);
                let start = Positions::read(r)?;
                let heads = start.0.iter().map(|_| r.number()).collect::<Option<_>>()?;
                let count = usize::from(r.u8()?);
                if count > JOIN_GAPS {
                    return None;
                }
                let mut gaps = Vec::with_capacity(count);
                for _ in 0..count {
                    gaps.push(StreamGap::read(r)?);
                }
                Record::Joined {
                    request,
                    handle,
                    index,
                    start,
                    heads,
                    gaps,
                    history: r.u32()?,
                    whole: r.u8()? != 0,
                }
            }
            Kind::Opened => Record::Opened {
                request: r.u32()?,
                handle: r.u32()?,
            },
            Kind::Close => Record::Close { handle: r.u32()? },
            Kind::SnapshotBegin => Record::SnapshotBegin {
                scope: Scope::read(r)?,
                version: r.number()?,
            },
            Kind::Membership => Record::Membership(Membership::read(r)?),
            Kind::SnapshotEnd => Record::SnapshotEnd {
                scope: Scope::read(r)?,
                version: r.number()?,
            },
            Kind::Covered => Record::Covered { offset: r.number()? },
            Kind::GatewayBegin => Record::GatewayBegin {
                node: r.u32()?,
                epoch: r.u32()?,
                scope: Scope::read(r)?,
                version: r.number()?,
            },
            Kind::GatewayMembership => Record::GatewayMembership {
                node: r.u32()?,
                epoch: r.u32()?,
                membership: Membership::read(r)?,
            },
            Kind::GatewayEnd => Record::GatewayEnd {
                node: r.u32()?,
                epoch: r.u32()?,
                scope: Scope::read(r)?,
                version: r.number()?,
            },
            Kind::GatewayGone => Record::GatewayGone {
                node: r.u32()?,
                epoch: r.u32()?,
                scope: Scope::read(r)?,
            },
            Kind::Complete => Record::Complete { scope: Scope::read(r)? },
            Kind::Subscribe => Record::Subscribe { scope: Scope::read(r)? },
            Kind::Unsubscribe => Record::Unsubscribe,
            Kind::GatewaySeen => Record::GatewaySeen {
                node: r.u32()?,
                up: r.u8()? != 0,
            },
            Kind::BrokerTold => Record::BrokerTold {
                node: r.u32()?,
                told: r.u8()? != 0,
            },
            Kind::Namespace => Record::Namespace {
                number: r.u8()?,
                name: r.bytes16()?,
            },
            Kind::Command | Kind::Count | Kind::End => Record::Command {
                number: r.u64()?,
                name: r.bytes16()?,
                left_ms: r.u32()?,
                ask: match kind {
                    Kind::Command => Ask::tell(read_data(r)?),
                    Kind::End => Ask::End { user: r.u64()? },
                    _ => read_count(r)?,
                },
            },
            Kind::CommandDone | Kind::Counted => Record::CommandDone {
                number: r.u64()?,
                outcome: read_outcome(r)?,
                retry_ms: r.u32()?,
                page: match kind {
                    Kind::CommandDone => None,
                    _ => Some(read_page(r)?),
                },
            },
            Kind::CommandTold => Record::CommandTold {
                handle: r.u32()?,
                command: read_command(r)?,
                data: read_data(r)?,
            },
            Kind::CommandTaken => Record::CommandTaken {
                command: read_command(r)?,
                taken: r.u8()? != 0,
            },
            Kind::LinkCommand | Kind::LinkCount | Kind::LinkEnd => Record::LinkCommand {
                command: read_command(r)?,
                session: r.u64()?,
                room: r.u64()?,
                check: r.u64()?,
                left_ms: r.u32()?,
                ask: match kind {
                    Kind::LinkCommand => Ask::tell(read_data(r)?),
                    Kind::LinkEnd => Ask::End { user: r.u64()? },
                    _ => read_count(r)?,
                },
            },
            Kind::LinkCommandDone | Kind::LinkCounted => Record::LinkCommandDone {
                command: read_command(r)?,
                session: r.u64()?,
                outcome: read_outcome(r)?,
                page: match kind {
                    Kind::LinkCommandDone => None,
                    _ => Some(read_page(r)?),
                },
            },
            Kind::Relays => Record::Relays,
            Kind::RelayTaken => Record::RelayTaken {
                room: r.u64()?,
                node: r.u32()?,
                on: r.u8()? != 0,
            },
            Kind::RelayedBy => Record::RelayedBy {
                room: r.u64()?,
                node: r.u32()?,
                role: r.u8()?,
                addr: Addr {
                    ip: r.array()?,
                    port: r.u16()?,
                },
            },
            Kind::RelayAsked => Record::RelayAsked {
                room: r.u64()?,
                broker: r.u32()?,
                on: r.u8()? != 0,
            },
            Kind::RelayAnswer => Record::RelayAnswer {
                room: r.u64()?,
                broker: r.u32()?,
                on: r.u8()? != 0,
            },
            Kind::RoomRefused => Record::RoomRefused {
                room: r.u64()?,
                code: Code::from_u8(r.u8()?),
            },
        };
        reader.is_empty().then_some(record)
    }
}

impl Encode for Record<'_> {
    fn write(&self, w: &mut Writer<'_>) -> bool {
        match self {
            Record::Control(record) => return record.write(w),
            Record::Guest(bytes) => {
                w.put(bytes);
            }
            Record::Join {
                request,
                name,
                positions,
                history,
            } => {
                positions.write(w.u8(Kind::Join as u8).u32(*request).bytes16(name));
                w.u32(*history);
            }
            Record::Filter { request, filter } => {
                filter.write(w.u8(Kind::Filter as u8).u32(*request));
            }
            Record::Leave { handle } => {
                w.u8(Kind::Leave as u8).u32(*handle);
            }
            Record::Headers => {
                w.u8(Kind::Headers as u8);
            }
            Record::Ages => {
                w.u8(Kind::Ages as u8);
            }
            Record::Open {
                request,
                name,
                incarnation,
            } => {
                w.u8(Kind::Open as u8).u32(*request).bytes16(name).u64(*incarnation);
            }
            Record::Joined {
                request,
                handle,
                index,
                start,
                heads,
                gaps,
                history,
                whole,
            } => {
                start.write(w.u8(Kind::Joined as u8).u32(*request).u32(*handle).u64(*index));
                for at in 0..start.0.len().min(STREAMS_MAX) {
                    w.u64(heads.get(at).copied().unwrap_or(0));
                }
                w.u8(gaps.len() as u8);
                gaps.iter().for_each(|gap| gap.write(w));
                w.u32(*history).u8(u8::from(*whole));
            }
            Record::Opened { request, handle } => {
                w.u8(Kind::Opened as u8).u32(*request).u32(*handle);
            }
            Record::Close { handle } => {
                w.u8(Kind::Close as u8).u32(*handle);
            }
            Record::SnapshotBegin { scope, version } => {
                scope.write(w.u8(Kind::SnapshotBegin as u8));
                w.u64(*version);
            }
            Record::Membership(membership) => membership.write(w.u8(Kind::Membership as u8)),
            Record::SnapshotEnd { scope, version } => {
                scope.write(w.u8(Kind::SnapshotEnd as u8));
                w.u64(*version);
            }
            Record::Covered { offset } => {
                w.u8(Kind::Covered as u8).u64(*offset);
            }
            Record::GatewayBegin {
                node,
                epoch,
                scope,
                version,
            } => {
                scope.write(w.u8(Kind::GatewayBegin as u8).u32(*node).u32(*epoch));
                w.u64(*version);
            }
            Record::GatewayMembership {
                node,
                epoch,
                membership,
            } => {
                membership.write(w.u8(Kind::GatewayMembership as u8).u32(*node).u32(*epoch));
            }
            Record::Relays => {
                w.u8(Kind::Relays as u8);
            }
            Record::RelayTaken { room, node, on } => {
                w.u8(Kind::RelayTaken as u8).u64(*room).u32(*node).u8(u8::from(*on));
            }
            Record::RelayedBy { room, node, role, addr } => {
                let w = w.u8(Kind::RelayedBy as u8).u64(*room).u32(*node).u8(*role);
                w.put(&addr.ip).u16(addr.port);
            }
            Record::RelayAsked { room, broker, on } => {
                w.u8(Kind::RelayAsked as u8).u64(*room).u32(*broker).u8(u8::from(*on));
            }
            Record::RelayAnswer { room, broker, on } => {
                w.u8(Kind::RelayAnswer as u8).u64(*room).u32(*broker).u8(u8::from(*on));
            }
            Record::RoomRefused { room, code } => {
                w.u8(Kind::RoomRefused as u8).u64(*room).u8(*code as u8);
            }
            Record::GatewayEnd {
                node,
                epoch,
                scope,
                version,
            } => {
                scope.write(w.u8(Kind::GatewayEnd as u8).u32(*node).u32(*epoch));
                w.u64(*version);
            }
            Record::GatewayGone { node, epoch, scope } => {
                scope.write(w.u8(Kind::GatewayGone as u8).u32(*node).u32(*epoch));
            }
            Record::Complete { scope } => scope.write(w.u8(Kind::Complete as u8)),
            Record::Subscribe { scope } => scope.write(w.u8(Kind::Subscribe as u8)),
            Record::Unsubscribe => {
                w.u8(Kind::Unsubscribe as u8);
            }
            Record::GatewaySeen { node, up } => {
                w.u8(Kind::GatewaySeen as u8).u32(*node).u8(u8::from(*up));
            }
            Record::BrokerTold { node, told } => {
                w.u8(Kind::BrokerTold as u8).u32(*node).u8(u8::from(*told));
            }
            Record::Namespace { number, name } => {
                w.u8(Kind::Namespace as u8).u8(*number).bytes16(name);
            }
            Record::Command {
                number,
                name,
                left_ms,
                ask,
            } => {
                let kind = match ask {
                    Ask::Tell(_) => Kind::Command,
                    Ask::Count { .. } => Kind::Count,
                    Ask::End { .. } => Kind::End,
                };
                write_ask(ask, w.u8(kind as u8).u64(*number).bytes16(name).u32(*left_ms));
            }
            Record::CommandDone {
                number,
                outcome,
                retry_ms,
                page,
            } => {
                let kind = if page.is_some() {
                    Kind::Counted
                } else {
                    Kind::CommandDone
                };
                let w = write_outcome(outcome, w.u8(kind as u8).u64(*number)).u32(*retry_ms);
                write_page(page.as_ref(), w);
            }
            Record::CommandTold { handle, command, data } => {
                write_command(command, w.u8(Kind::CommandTold as u8).u32(*handle)).bytes16(data);
            }
            Record::CommandTaken { command, taken } => {
                write_command(command, w.u8(Kind::CommandTaken as u8)).u8(u8::from(*taken));
            }
            Record::LinkCommand {
                command,
                session,
                room,
                check,
                left_ms,
                ask,
            } => {
                let kind = match ask {
                    Ask::Tell(_) => Kind::LinkCommand,
                    Ask::Count { .. } => Kind::LinkCount,
                    Ask::End { .. } => Kind::LinkEnd,
                };
                let w = write_command(command, w.u8(kind as u8)).u64(*session);
                write_ask(ask, w.u64(*room).u64(*check).u32(*left_ms));
            }
            Record::LinkCommandDone {
                command,
                session,
                outcome,
                page,
            } => {
                let kind = if page.is_some() {
                    Kind::LinkCounted
                } else {
                    Kind::LinkCommandDone
                };
                let w = write_command(command, w.u8(kind as u8)).u64(*session);
                write_page(page.as_ref(), write_outcome(outcome, w));
            }
        };
        !w.full()
    }
}

impl<'a> SystemRecord<'a> for Record<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        Record::read(bytes)
    }

    fn control(&self) -> Option<&ControlRecord<'a>> {
        match self {
            Record::Control(record) => Some(record),
            _ => None,
        }
    }

    fn access(&self) -> Access {
        match self {
            Record::Join { .. }
            | Record::Filter { .. }
            | Record::Leave { .. }
            | Record::Ages
            | Record::Headers
            | Record::Open { .. } => Access::Waits,
            Record::Close { .. } | Record::Command { .. } | Record::CommandTaken { .. } | Record::Guest(_) => {
                Access::Open
            }
            _ => Access::Never,
        }
    }

    /// Records that undo a join or an open: if they were dropped, a membership or a publication would stay forever.
    /// Also replies to the server's own request, and a filter, which its join is counted with. A guest has limits of its own.
    fn is_free(&self) -> bool {
        matches!(
            self,
            Record::Leave { .. }
                | Record::Filter { .. }
                | Record::Close { .. }
                | Record::CommandTaken { .. }
                | Record::Guest(_)
        )
    }

    fn refusal(&self, code: Code, retry_ms: u32) -> Option<Self> {
        match self {
            Record::Join { request, .. } | Record::Open { request, .. } => {
                Some(Record::Control(ControlRecord::Refused {
                    request: *request,
                    code,
                    retry_ms,
                }))
            }
            Record::Command { number, .. } => Some(Record::CommandDone {
                number: *number,
                outcome: Outcome::refused(code),
                retry_ms,
                page: None,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::NAME_BYTES_MAX;
    use crate::wire::stream::{GapReason, StreamId};
    use proptest::prelude::*;

    #[test]
    fn every_record_survives_the_wire() {
        let stream = StreamId {
            node: 1,
            epoch: 2,
            generation: 3,
        };
        let gap = StreamGap {
            stream,
            first: 1,
            last: StreamGap::OPEN,
            reason: GapReason::OwnerLost,
        };
        let scope = Scope::new(256, 255).unwrap();
        let command = CommandId { user: 1, number: 2 };
        let records = [
            Record::Join {
                request: 1,
                name: b"a:b",
                positions: Positions::at([(stream, 9)]),
                history: 60,
            },
            Record::Filter {
                request: 1,
                filter: Filter::latest([("pair", vec!["EUR", "USD"])], 7, Some(5)).unwrap(),
            },
            Record::Leave { handle: 2 },
            Record::Open {
                request: 3,
                name: b"c",
                incarnation: 4,
            },
            Record::Joined {
                request: 10,
                handle: 11,
                index: 12,
                start: Positions::at([(stream, 4); STREAMS_MAX]),
                heads: vec![61; STREAMS_MAX],
                gaps: vec![gap; JOIN_GAPS],
                history: 62,
                whole: true,
            },
            Record::Opened {
                request: 13,
                handle: 14,
            },
            Record::Close { handle: 36 },
            Record::SnapshotBegin { scope, version: 15 },
            Record::Membership(Membership {
                room: 16,
                check: 33,
                version: 17,
                present: true,
            }),
            Record::SnapshotEnd { scope, version: 18 },
            Record::Covered { offset: 19 },
            Record::GatewayBegin {
                node: 20,
                epoch: 21,
                scope,
                version: 22,
            },
            Record::GatewayMembership {
                node: 23,
                epoch: 24,
                membership: Membership {
                    room: 25,
                    check: 34,
                    version: 26,
                    present: false,
                },
            },
            Record::GatewayEnd {
                node: 27,
                epoch: 28,
                scope,
                version: 29,
            },
            Record::GatewayGone {
                node: 30,
                epoch: 31,
                scope,
            },
            Record::Complete { scope },
            Record::Subscribe { scope },
            Record::Unsubscribe,
            Record::GatewaySeen { node: 37, up: true },
            Record::BrokerTold { node: 38, told: true },
            Record::Namespace {
                number: 39,
                name: b"chat",
            },
            Record::Relays,
            Record::RelayTaken {
                room: 70,
                node: 71,
                on: true,
            },
            Record::RelayedBy {
                room: 72,
                node: 73,
                role: 5,
                addr: Addr { ip: [74; 16], port: 75 },
            },
            Record::RelayAsked {
                room: 76,
                broker: 77,
                on: true,
            },
            Record::RelayAnswer {
                room: 78,
                broker: 79,
                on: false,
            },
            Record::RoomRefused {
                room: 35,
                code: Code::NameCollision,
            },
            Record::Command {
                number: 38,
                name: b"a:b",
                left_ms: 39,
                ask: Ask::tell(b"go"),
            },
            Record::CommandDone {
                number: 40,
                outcome: Outcome::refused(Code::RateLimited),
                retry_ms: 41,
                page: None,
            },
            Record::Command {
                number: 50,
                name: b"a:b",
                left_ms: 51,
                ask: Ask::Count { from: None },
            },
            Record::CommandDone {
                number: 52,
                outcome: Outcome::of(53),
                retry_ms: 0,
                page: Some(Page {
                    users: (0..USERS_MAX as u64).collect(),
                    more: true,
                    hops: vec![Hop { node: 54, took_us: 55 }; HOPS_MAX],
                }),
            },
            Record::CommandTold {
                handle: 42,
                command,
                data: b"",
            },
            Record::CommandTaken { command, taken: true },
            Record::LinkCommand {
                command,
                session: 43,
                room: 44,
                check: 45,
                left_ms: 46,
                ask: Ask::tell(&[7; COMMAND_BYTES_MAX]),
            },
            Record::LinkCommand {
                command,
                session: 54,
                room: 55,
                check: 56,
                left_ms: 57,
                ask: Ask::Count { from: Some(58) },
            },
            Record::Command {
                number: 60,
                name: b"a:b",
                left_ms: 61,
                ask: Ask::End { user: 62 },
            },
            Record::LinkCommand {
                command,
                session: 63,
                room: 64,
                check: 65,
                left_ms: 66,
                ask: Ask::End { user: u64::MAX },
            },
            Record::LinkCommandDone {
                command,
                session: 59,
                outcome: Outcome::of(0),
                page: Some(Page::default()),
            },
            Record::LinkCommandDone {
                command,
                session: 47,
                outcome: Outcome::expired(48),
                page: None,
            },
            Record::Command {
                number: 49,
                name: &[b'x'; NAME_BYTES_MAX],
                left_ms: 50,
                ask: Ask::tell(&[7; COMMAND_BYTES_MAX]),
            },
        ];
        for record in records {
            record.encode(|bytes| assert_eq!(Record::read(bytes), Some(record.clone())));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::read(&bytes);
        }
    }
}
