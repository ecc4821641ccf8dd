//! The golden vectors of the wire, `tests/vectors/wire.json`: each is parsed to its fields and written back to its
//! bytes. `tests/reference/wire.py` parses the same file by the tables of `docs/protocol.md`.

use muster_rooms::command::{Ask, Outcome, Page, Verdict};
use muster_rooms::role;
use muster_rooms::wire::{
    heads, kinds, published, read_link_repair, read_repair, write_link_repair, write_repair, Ack, BlockWriter,
    Consumed, Course, GapPlace, LeftOut, LinkBlock, LinkHead, LinkLost, LinkPublish, Message, Passed, Position,
    Positions, Publish, Record, RelayedBlock, RelayedHead, RoomBlock, Skip, StreamGap, StreamId,
};
use muster_transport::{
    append, hello_proof, reset_token, Addr, ControlRecord, DatagramKind, Direction, Encode, Entropy, Frame, FrameKind,
    Frames, Header, InitiatorKey, KeyCache, KeySlots, Knock, Listed, LogReceiver, LogSender, Outbox, Reader, Scope,
    Secret, Server, Status, Writer, HEADER,
};
use serde_json::{json, Map, Value};

fn repository(path: &str) -> String {
    let path = format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).expect("the file is part of the repository")
}

fn cases(what: &str) -> Vec<Value> {
    let vectors: Value = serde_json::from_str(&repository("tests/vectors/wire.json")).expect("vectors are JSON");
    vectors[what].as_array().expect("a list of cases").clone()
}

fn text(case: &Value, name: &str) -> String {
    case[name].as_str().expect("a string").to_string()
}

fn bytes(case: &Value) -> Vec<u8> {
    let digits = text(case, "bytes");
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Numbers as strings, as the vectors write them.
fn strings(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::String(number.to_string()),
        Value::Bool(yes) => Value::String(u8::from(yes).to_string()),
        Value::Array(list) => list.into_iter().map(strings).collect(),
        Value::Object(map) => map.into_iter().map(|(name, value)| (name, strings(value))).collect(),
        other => other,
    }
}

fn stream(stream: StreamId, mut rest: Value) -> Value {
    let fields = rest.as_object_mut().expect("fields");
    fields.insert("node".into(), json!(stream.node));
    fields.insert("epoch".into(), json!(stream.epoch));
    fields.insert("generation".into(), json!(stream.generation));
    rest
}

fn gap(gap: &StreamGap) -> Value {
    stream(
        gap.stream,
        json!({"first": gap.first, "last": gap.last, "reason": gap.reason as u8}),
    )
}

fn positions(positions: &Positions) -> Value {
    let offset = |position: &Position| {
        let course = match position.course {
            Course::GoesOn => 0,
            Course::Ended => 1,
            Course::Lost => 2,
        };
        position.offset | course << 62
    };
    let entry = |position: &Position| stream(position.stream, json!({ "offset": offset(position) }));
    positions.0.iter().map(entry).collect()
}

fn ranges(ranges: &[(u64, u64)]) -> Value {
    let entry = |(first, last): &(u64, u64)| json!({"first": first, "run": last - first});
    ranges.iter().map(entry).collect()
}

/// The messages of a parsed block next to the vector's, with publishers by name.
fn messages(expected: &Value, found: &[Message<'_>]) -> Value {
    let listed = expected["messages"].as_array().expect("a list of messages");
    assert_eq!(listed.len(), found.len());
    let mut named: Vec<&Message<'_>> = Vec::new();
    let entry = |(listed, message): (&Value, &Message<'_>)| {
        let mut fields = Map::new();
        if listed.get("sequence").is_some() {
            let found = found.iter().find(|known| std::ptr::eq(*known, message));
            named.push(found.expect("it is one of them"));
            fields.insert("user".into(), json!(message.publisher.user));
            fields.insert("incarnation".into(), json!(message.publisher.incarnation));
            fields.insert("sequence".into(), json!(message.sequence));
        }
        let publisher: usize = text(listed, "publisher").parse().expect("a number");
        assert_eq!(named[publisher].publisher, message.publisher);
        fields.insert("publisher".into(), json!(publisher));
        fields.insert("delta".into(), json!(message.sequence - named[publisher].sequence));
        fields.insert("flags".into(), json!(message.flags));
        fields.insert("data".into(), json!(hex(message.data)));
        Value::Object(fields)
    };
    listed.iter().zip(found).map(entry).collect()
}

fn publications(messages: &[u8], count: u8) -> Value {
    published(messages, count)
        .map(|(flags, data)| json!({"flags": flags, "data": hex(data)}))
        .collect()
}

fn ack(ack: &Ack) -> Value {
    let runs = ack.runs.iter();
    let runs: Value = runs
        .map(|(first, offset, count)| json!({"first": first, "offset": offset, "count": count}))
        .collect();
    stream(
        ack.stream,
        json!({
            "handle": ack.handle, "echo": ack.echo, "code": ack.code as u8, "cumulative": ack.cumulative, "highest": ack.highest,
            "credit_messages": ack.credit_messages, "credit_bytes": ack.credit_bytes,
            "missing": ranges(&ack.missing), "runs": runs,
        }),
    )
}

fn join(mut one: Value, other: Value) -> Value {
    let (into, from) = (one.as_object_mut().expect("fields"), other);
    into.extend(from.as_object().expect("fields").clone());
    one
}

fn block(mut writer: BlockWriter, into: &mut Writer<'_>, messages: &[Message<'_>]) -> bool {
    messages.iter().all(|message| writer.push(into, message)) && writer.finish(into) == messages.len()
}

/// A frame's fields; also writes the frame again to `out`.
fn frame(frame: &Frame<'_>, expected: &Value, out: &mut Writer<'_>) -> Value {
    let (kind, body) = (frame.kind, frame.body);
    let mut plain = |fill: &dyn Fn(&mut Writer<'_>)| {
        assert!(append(out, kind, 0, |writer| {
            fill(writer);
            true
        }));
    };
    match kind {
        FrameKind::STATUS => {
            let status = Status::read(body).expect("good");
            assert!(status.write(out));
            let missing = status.missing().iter();
            let missing: Value = missing
                .map(|(first, last)| json!({"below": status.highest - last, "run": last - first}))
                .collect();
            json!({
                "highest": status.highest, "received": status.received, "delay": status.delay,
                "window": status.window, "missing": missing,
            })
        }
        FrameKind::LOG => {
            let mut records = Vec::new();
            let taken = LogReceiver::new(1 << 16).receive(body, |record| records.push(record.to_vec()));
            assert!(taken.is_ok());
            let mut log = LogSender::new(1 << 16);
            for record in &records {
                assert!(log.push(record).is_ok());
            }
            assert!(append(out, kind, 0, |writer| {
                let len = log.next_frame(0, 30_000, 0, writer.spare()).expect("records are due");
                writer.advance(len);
                true
            }));
            let records: Value = records.iter().map(|record| json!({"record": hex(record)})).collect();
            json!({"first": 1, "records": records})
        }
        FrameKind::LOG_ACK => {
            let next = Reader::new(body).u64().expect("good");
            plain(&|writer| {
                writer.u64(next);
            });
            json!({ "next": next })
        }
        FrameKind::PING => {
            plain(&|_| ());
            json!({})
        }
        FrameKind::PATH_CHALLENGE | FrameKind::PATH_RESPONSE => {
            plain(&|writer| {
                writer.put(body);
            });
            json!({"challenge": hex(body)})
        }
        FrameKind::CLOSE => {
            plain(&|writer| {
                writer.put(body);
            });
            json!({"code": body[0]})
        }
        kinds::ROOM => {
            let read = RoomBlock::read(body).expect("good");
            let (handle, index, id, offset) = (read.handle, read.index, read.stream, read.offset);
            let found: Vec<_> = read.messages.collect();
            assert!(append(out, kind, 0, |writer| {
                let begun = RoomBlock::begin(writer, handle, index, id, offset, None);
                block(begun, writer, &found)
            }));
            let messages = messages(expected, &found);
            stream(
                id,
                json!({"handle": handle, "place": index, "offset": offset, "messages": messages}),
            )
        }
        kinds::AGED_MEMBER_ROOM => {
            let read = RoomBlock::read_aged(body).expect("good");
            let (handle, index, id, offset) = (read.handle, read.index, read.stream, read.offset);
            let age = read.age.expect("it has one");
            let found: Vec<_> = read.messages.collect();
            assert!(append(out, kind, 0, |writer| {
                let begun = RoomBlock::begin(writer, handle, index, id, offset, Some(age));
                block(begun, writer, &found)
            }));
            let messages = messages(expected, &found);
            stream(
                id,
                json!({"handle": handle, "place": index, "offset": offset, "age": age, "messages": messages}),
            )
        }
        kinds::GAP => {
            let place = GapPlace::read(body).expect("good");
            assert!(place.write(out));
            join(json!({"handle": place.handle, "place": place.index}), gap(&place.gap))
        }
        kinds::PASSED => {
            let passed = Passed::read(body).expect("good");
            assert!(passed.write(out));
            stream(
                passed.stream,
                json!({"handle": passed.handle, "place": passed.index, "offset": passed.offset, "count": passed.count}),
            )
        }
        kinds::LEFT_OUT => {
            let left = LeftOut::read(body).expect("good");
            assert!(left.write(out));
            let resume = left.resume.iter();
            let resume: Value = resume.map(|(id, next)| stream(*id, json!({ "next": next }))).collect();
            json!({"handle": left.handle, "place": left.index, "end": left.end, "resume": resume})
        }
        kinds::SKIP => {
            let skip = Skip::read(body).expect("good");
            assert!(skip.write(out));
            let resume = skip.resume.iter();
            let resume: Value = resume.map(|(id, next)| stream(*id, json!({ "next": next }))).collect();
            json!({"handle": skip.handle, "place": skip.index, "reason": skip.reason as u8, "resume": resume})
        }
        kinds::HEADS => {
            let all: Vec<_> = heads(body).collect();
            plain(&|writer| {
                all.iter().for_each(|(handle, place)| {
                    writer.u32(*handle).u64(*place);
                })
            });
            let all = all
                .iter()
                .map(|(handle, place)| json!({"handle": handle, "place": place}));
            json!({ "heads": all.collect::<Value>() })
        }
        kinds::REPAIR => {
            let (handle, next, wanted) = read_repair(body).expect("good");
            let wanted: Vec<_> = wanted.collect();
            assert!(write_repair(out, handle, next, &wanted));
            json!({"handle": handle, "next": next, "ranges": ranges(&wanted)})
        }
        kinds::LINK_ROOM => {
            let read = LinkBlock::read(body).expect("good");
            let (room, generation, base, offset) = (read.room, read.generation, read.base, read.offset);
            let found: Vec<_> = read.messages.collect();
            assert!(append(out, kind, 0, |writer| {
                let begun = LinkBlock::begin(writer, room, generation, base, offset, None);
                block(begun, writer, &found)
            }));
            let messages = messages(expected, &found);
            json!({"room": room, "generation": generation, "base": base, "offset": offset, "messages": messages})
        }
        kinds::AGED_ROOM => {
            let read = LinkBlock::read_aged(body).expect("good");
            let (room, generation, base, offset) = (read.room, read.generation, read.base, read.offset);
            let age = read.age.expect("it has one");
            let found: Vec<_> = read.messages.collect();
            assert!(append(out, kind, 0, |writer| {
                let begun = LinkBlock::begin(writer, room, generation, base, offset, Some(age));
                block(begun, writer, &found)
            }));
            let messages = messages(expected, &found);
            json!({"room": room, "generation": generation, "base": base, "offset": offset, "age": age, "messages": messages})
        }
        kinds::LINK_HEADS => {
            let all: Vec<_> = LinkHead::read_all(body).collect();
            plain(&|writer| all.iter().for_each(|head| head.write(writer)));
            let all = all.iter().map(
                |head| json!({"room": head.room, "generation": head.generation, "base": head.base, "next": head.next}),
            );
            json!({ "heads": all.collect::<Value>() })
        }
        kinds::RELAYED_ROOM | kinds::AGED_RELAYED_ROOM => {
            let read = match kind {
                kinds::RELAYED_ROOM => RelayedBlock::read(body),
                _ => RelayedBlock::read_aged(body),
            };
            let RelayedBlock { broker, block: read } = read.expect("good");
            let (room, generation, offset, age) = (read.room, read.generation, read.offset, read.age);
            let found: Vec<_> = read.messages.collect();
            // It is a link block of the same length, with the broker in it.
            let mut bytes = [0; 1_200];
            let mut writer = Writer::new(&mut bytes);
            let of = match kind {
                kinds::RELAYED_ROOM => kinds::LINK_ROOM,
                _ => kinds::AGED_ROOM,
            };
            assert!(append(&mut writer, of, 0, |writer| {
                let begun = LinkBlock::begin(writer, room, generation, 1, offset, age);
                block(begun, writer, &found)
            }));
            let plain = Frames::new(writer.written(), kinds::ALL)
                .next()
                .expect("a frame")
                .expect("good");
            out.put(&RelayedBlock::of(&plain, broker, age.unwrap_or(0)).expect("a block"));
            let mut fields = json!({
                "room": room, "generation": generation, "node": broker.0, "epoch": broker.1, "offset": offset,
                "messages": messages(expected, &found),
            });
            if let Some(age) = age {
                fields["age"] = json!(age);
            }
            fields
        }
        kinds::RELAYED_HEADS => {
            let all: Vec<_> = RelayedHead::read_all(body).collect();
            plain(&|writer| all.iter().for_each(|head| head.write(writer)));
            let all = all
                .iter()
                .map(|head| stream(head.stream, json!({"room": head.room, "next": head.next})));
            json!({ "heads": all.collect::<Value>() })
        }
        kinds::LINK_REPAIR => {
            let (room, generation, history, wanted) = read_link_repair(body).expect("good");
            let wanted: Vec<_> = wanted.collect();
            assert!(write_link_repair(out, room, generation, history, &wanted));
            json!({"room": room, "generation": generation, "history": history, "ranges": ranges(&wanted)})
        }
        kinds::LINK_LOST => {
            let lost = LinkLost::read(body).expect("good");
            assert!(lost.write(out));
            json!({"room": lost.room, "generation": lost.generation, "first": lost.first})
        }
        kinds::CONSUMED => {
            let all: Vec<_> = Consumed::read_all(body).collect();
            plain(&|writer| all.iter().for_each(|consumed| consumed.write(writer)));
            let all = all.iter().map(
                |each| json!({"room": each.room, "generation": each.generation, "next": each.next, "kept": each.kept}),
            );
            json!({ "rooms": all.collect::<Value>() })
        }
        kinds::PUBLISH => {
            let publish = Publish::read(body).expect("good");
            assert!(publish.write(out));
            let messages = publications(publish.messages, publish.count);
            json!({"handle": publish.handle, "sent_at": publish.sent_at, "low": publish.low, "first": publish.first, "messages": messages})
        }
        kinds::LINK_PUBLISH => {
            let publish = LinkPublish::read(frame.flags, body).expect("good");
            assert!(publish.write(out));
            json!({
                "room": publish.room, "check": publish.check, "user": publish.publisher.user,
                "incarnation": publish.publisher.incarnation, "session": publish.session, "handle": publish.handle, "sent_at": publish.sent_at, "low": publish.low, "first": publish.first,
                "messages": publications(publish.messages, publish.count),
            })
        }
        kinds::AGED_PUBLISH => {
            let publish = LinkPublish::read_aged(frame.flags, body).expect("good");
            assert!(publish.write(out));
            json!({
                "room": publish.room, "check": publish.check, "user": publish.publisher.user,
                "incarnation": publish.publisher.incarnation, "session": publish.session, "handle": publish.handle, "sent_at": publish.sent_at, "behind": publish.first - publish.low, "age": publish.age,
                "first": publish.first, "messages": publications(publish.messages, publish.count),
            })
        }
        kinds::LINK_ACK => {
            let (session, rest) = Ack::read_link(body).expect("good");
            let read = Ack::read(rest).expect("good");
            assert!(read.write_link(out, session));
            join(json!({ "session": session }), ack(&read))
        }
        kinds::ACK => {
            let read = Ack::read(body).expect("good");
            assert!(read.write(out));
            ack(&read)
        }
        other => panic!("{other:?} is no kind of a frame"),
    }
}

/// A record's fields together with those of its scope.
fn scoped(scope: Scope, mut fields: Value) -> Value {
    let (count, index) = scope.part();
    fields["count"] = json!(count);
    fields["index"] = json!(index);
    fields
}

fn outcome(known: &Outcome) -> Value {
    let (verdict, code) = match known.verdict {
        Verdict::Delivered => (0, 0),
        Verdict::NoMember => (1, 0),
        Verdict::Expired => (2, 0),
        Verdict::Refused(code) => (3, code as u8),
    };
    json!({"verdict": verdict, "code": code, "members": known.members})
}

fn ask(known: &Ask<'_>) -> Value {
    match known {
        Ask::Tell(data) => json!({"data": hex(data)}),
        Ask::Count { from } => json!({"users": u8::from(from.is_some()), "from": from.unwrap_or(0)}),
        Ask::End { user } => json!({"member": user}),
    }
}

fn page(known: Option<&Page>) -> Value {
    known.map_or(json!({}), |page| {
        let users: Vec<Value> = page.users.iter().map(|user| json!({"user": user})).collect();
        let hops: Vec<Value> = page
            .hops
            .iter()
            .map(|hop| json!({"node": hop.node, "took_us": hop.took_us}))
            .collect();
        json!({"more": u8::from(page.more), "users": users, "hops": hops})
    })
}

fn record(record: &Record<'_>) -> Value {
    match record {
        Record::Control(ControlRecord::Authenticate { credential }) => json!({"credential": hex(credential)}),
        Record::Join {
            request,
            name,
            positions: known,
            history,
        } => json!({"request": request, "name": hex(name), "positions": positions(known), "history": history}),
        Record::Filter { request, filter } => {
            let equal: Vec<Value> = filter
                .equal()
                .map(|(name, values)| {
                    let values: Vec<_> = values.map(|value| json!({ "value": hex(value.as_bytes()) })).collect();
                    json!({"name": hex(name.as_bytes()), "values": values})
                })
                .collect();
            json!({
                "request": request,
                "one_in": filter.one_in(),
                "at_most_per_s": filter.at_most_per_s().unwrap_or(0),
                "equal": equal,
            })
        }
        Record::Leave { handle } | Record::Close { handle } => json!({ "handle": handle }),
        Record::Guest(record) => panic!("a record of another system: {record:?}"),
        Record::Open {
            request,
            name,
            incarnation,
        } => json!({"request": request, "name": hex(name), "incarnation": incarnation}),
        Record::Control(ControlRecord::Ready {
            user,
            token,
            keepalive_ms,
        }) => json!({"user": user, "token": hex(token), "keepalive_ms": keepalive_ms}),
        Record::Control(ControlRecord::Pace {
            backoff_ms,
            backoff_max_ms,
        }) => json!({"backoff_ms": backoff_ms, "backoff_max_ms": backoff_max_ms}),
        Record::Control(ControlRecord::Lease { left_ms }) => json!({ "left_ms": left_ms }),
        Record::Control(ControlRecord::Servers { role, servers }) => {
            let server = |server: &Server| {
                let Server { addr, key, weight } = server;
                json!({"ip": hex(&addr.ip), "port": addr.port, "key": hex(key), "weight": weight})
            };
            json!({"role": role.code(), "servers": servers.iter().map(server).collect::<Vec<_>>()})
        }
        Record::Control(ControlRecord::Refused {
            request,
            code,
            retry_ms,
        }) => json!({"request": request, "code": *code as u8, "retry_ms": retry_ms}),
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
            let gaps: Value = gaps.iter().map(gap).collect();
            let heads: Vec<Value> = heads.iter().map(|next| json!({ "next": next })).collect();
            json!({
                "request": request, "handle": handle, "place": index, "start": positions(start), "heads": heads,
                "gaps": gaps, "history": history, "whole": u8::from(*whole),
            })
        }
        Record::Opened { request, handle } => json!({"request": request, "handle": handle}),
        Record::SnapshotBegin { scope, version } | Record::SnapshotEnd { scope, version } => {
            scoped(*scope, json!({ "version": version }))
        }
        Record::Membership(known) => {
            json!({"room": known.room, "check": known.check, "version": known.version, "present": known.present})
        }
        Record::Covered { offset } => json!({ "offset": offset }),
        Record::GatewayBegin {
            node,
            epoch,
            scope,
            version,
        }
        | Record::GatewayEnd {
            node,
            epoch,
            scope,
            version,
        } => scoped(*scope, json!({"node": node, "epoch": epoch, "version": version})),
        Record::GatewayMembership {
            node,
            epoch,
            membership: known,
        } => json!({
            "node": node, "epoch": epoch, "room": known.room, "check": known.check, "version": known.version,
            "present": known.present,
        }),
        Record::GatewayGone { node, epoch, scope } => scoped(*scope, json!({"node": node, "epoch": epoch})),
        Record::Complete { scope } | Record::Subscribe { scope } => scoped(*scope, json!({})),
        Record::Unsubscribe | Record::Ages | Record::Headers | Record::Relays => json!({}),
        Record::RelayTaken { room, node, on } => json!({"room": room, "node": node, "on": u8::from(*on)}),
        Record::RelayedBy { room, node, role, addr } => {
            json!({"room": room, "node": node, "role": role, "ip": hex(&addr.ip), "port": addr.port})
        }
        Record::RelayAsked { room, broker, on } | Record::RelayAnswer { room, broker, on } => {
            json!({"room": room, "broker": broker, "on": u8::from(*on)})
        }
        Record::GatewaySeen { node, up } => json!({"node": node, "up": up}),
        Record::BrokerTold { node, told } => json!({"node": node, "told": told}),
        Record::Namespace { number, name } => json!({"number": number, "name": hex(name)}),
        Record::Control(ControlRecord::LinkReady { token }) => json!({"token": hex(token)}),
        Record::RoomRefused { room, code } => json!({"room": room, "code": *code as u8}),
        Record::Command {
            number,
            name,
            left_ms,
            ask: what,
        } => join(
            json!({"number": number, "name": hex(name), "left_ms": left_ms}),
            ask(what),
        ),
        Record::CommandDone {
            number,
            outcome: known,
            retry_ms,
            page: users,
        } => join(
            join(json!({"number": number, "retry_ms": retry_ms}), outcome(known)),
            page(users.as_ref()),
        ),
        Record::CommandTold { handle, command, data } => json!({
            "handle": handle, "user": command.user, "number": command.number, "data": hex(data),
        }),
        Record::CommandTaken { command, taken } => json!({
            "user": command.user, "number": command.number, "taken": u8::from(*taken),
        }),
        Record::LinkCommand {
            command,
            session,
            room,
            check,
            left_ms,
            ask: what,
        } => join(
            json!({
                "user": command.user, "number": command.number, "session": session, "room": room, "check": check,
                "left_ms": left_ms,
            }),
            ask(what),
        ),
        Record::LinkCommandDone {
            command,
            session,
            outcome: known,
            page: users,
        } => join(
            join(
                json!({"user": command.user, "number": command.number, "session": session}),
                outcome(known),
            ),
            page(users.as_ref()),
        ),
    }
}

#[test]
fn every_frame_parses_to_its_fields_and_encodes_to_its_bytes() {
    let mut seen = Vec::new();
    for case in cases("frames") {
        let (bytes, name) = (bytes(&case), text(&case, "name"));
        let read = Frames::new(&bytes, kinds::ALL)
            .next()
            .expect("a frame")
            .expect("a good one");
        assert_eq!(read.kind.code().to_string(), text(&case, "kind"), "{name}");
        assert_eq!((read.flags, read.body.len()), (0, bytes.len() - 4), "{name}");
        let mut space = [0; 1_200];
        let mut out = Writer::new(&mut space);
        let fields = strings(frame(&read, &case["fields"], &mut out));
        assert_eq!(fields, case["fields"], "{name}");
        assert_eq!(hex(out.written()), hex(&bytes), "{name}");
        seen.push(read.kind);
    }
    for kind in every_kind() {
        assert!(seen.contains(&kind), "{kind:?} has no vector");
    }
}

#[test]
fn every_record_parses_to_its_fields_and_encodes_to_its_bytes() {
    for case in cases("records") {
        let (bytes, name) = (bytes(&case), text(&case, "name"));
        let read = Record::read(&bytes).expect("a good record");
        assert_eq!(strings(record(&read)), case["fields"], "{name}");
        assert_eq!(read.encode(hex), hex(&bytes), "{name}");
    }
}

#[test]
fn every_header_parses_to_its_fields_and_encodes_to_its_bytes() {
    for case in cases("datagrams") {
        let (bytes, name) = (bytes(&case), text(&case, "name"));
        let header = Header::read(&bytes).expect("a good header");
        let fields = json!({
            "key_id": header.key_id, "flags": header.flags, "connection": header.connection, "epoch": header.epoch,
            "sequence": header.sequence, "placement": header.placement,
        });
        assert_eq!(strings(fields), case["header"], "{name}");
        let kind = [DatagramKind::Hello, DatagramKind::Cookie, DatagramKind::Accept]
            .into_iter()
            .chain([DatagramKind::Data, DatagramKind::Reset])
            .find(|kind| (*kind as u8).to_string() == text(&case, "kind"));
        assert_eq!(Some(header.kind), kind, "{name}");
        let mut out = [0; HEADER];
        header.write(&mut out);
        assert_eq!(hex(&out), hex(&bytes[..HEADER]), "{name}");
    }
}

struct Nought;

impl Entropy for Nought {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill(1);
    }
}

#[test]
fn clear_fields_are_where_the_vectors_have_them() {
    let cases = cases("datagrams");
    let find = |name: &str| cases.iter().find(|case| case["name"] == name).expect("a case");
    let (hello, cookie) = (bytes(find("hello")), bytes(find("cookie")));
    assert_eq!(
        reset_token(&bytes(find("reset"))).map(|token| hex(&token)),
        Some(text(&find("reset")["fields"], "token"))
    );
    let header = Header::read(&hello).expect("good");
    let mut knock = Knock::new(
        header.connection,
        InitiatorKey::Client(&[9; 32]),
        header.key_id,
        &[],
        &mut Nought,
    );
    assert!(knock.cookie(&cookie));
    let mut outbox = Outbox::new(false);
    knock.hello(0, Addr::default(), 1_200, &mut outbox);
    let written = outbox.bytes(&outbox.parcels()[0]);
    let noise = HEADER + 18..HEADER + 18 + usize::from(written[HEADER + 16]);
    assert_eq!(hex(&written[..HEADER + 16]), hex(&hello[..HEADER + 16]));
    assert_eq!((written.len(), written[HEADER + 17]), (hello.len(), 0));
    assert!(written[noise.clone()].iter().any(|byte| *byte != 0));
    assert!(written[noise.end..].iter().all(|byte| *byte == 0));

    let (role, key) = (role::ROUTER, [9; 32]);
    let mut outbox = Outbox::new(false);
    knock
        .of_node(258, &[8; 32], Listed { role, key })
        .hello(0, Addr::default(), 1_200, &mut outbox);
    let written = outbox.bytes(&outbox.parcels()[0]);
    assert_eq!(text(&find("hello")["fields"], "node"), "258");
    assert_eq!(written[noise.end..noise.end + 4], hello[HEADER + 34..HEADER + 38]);
    let proof = hello_proof(&[8; 32], header.connection, 258, &written[noise.clone()]);
    assert_eq!(written[noise.end + 4..noise.end + 20], proof);
    assert_eq!(
        text(&find("hello")["fields"], "proof"),
        hex(&hello[HEADER + 38..HEADER + 54])
    );
    assert!(written[noise.end + 20..].iter().all(|byte| *byte == 0));
}

/// The kinds of frames that rooms understand.
fn every_kind() -> impl Iterator<Item = FrameKind> {
    (0..=255).filter_map(|code| kinds::ALL.find(code))
}

/// The page's column "wants" compared with the code.
#[test]
fn the_page_lists_which_frames_elicit_a_status() {
    let page = repository("docs/protocol.md");
    let table = page.split("| kind | frame |").nth(1).expect("the table of frames");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let said: Vec<_> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].to_string(), cells[4] == "yes")
        })
        .collect();
    let wanted = every_kind().map(|kind| (kind.code().to_string(), kinds::ALL.elicits(kind)));
    assert_eq!(said, wanted.collect::<Vec<_>>());
}

/// Datagrams of a client of version 1 with fixed keys: frozen, to catch a later release that reads them differently.
#[test]
fn datagrams_of_the_first_release_still_parse() {
    let recorded: Value = serde_json::from_str(&repository("tests/vectors/version-1.json")).expect("vectors are JSON");
    let unhex = |of: &Value, name: &str| bytes(&json!({ "bytes": of[name] }));
    let datagrams = &recorded["datagrams"];
    let secret = Secret::new(unhex(&recorded, "secret").try_into().expect("16 bytes"));
    let peer: u64 = text(&recorded, "peer").parse().expect("a number");
    let hello = unhex(datagrams, "hello");
    let header = Header::read(&hello).expect("a header");
    assert_eq!((header.kind, hello.len()), (DatagramKind::Hello, 1_200));
    let (mut keys, mut found) = (KeyCache::default(), Vec::new());
    let names = ["authenticate", "join", "open", "publish", "resume", "leave", "close"];
    for (sequence, name) in (1..).zip(names) {
        let mut bytes = unhex(datagrams, name);
        let header = Header::read(&bytes).expect("a header");
        let wanted = (DatagramKind::Data, peer, sequence);
        assert_eq!((header.kind, header.connection, header.sequence), wanted, "{name}");
        let (aad, sealed) = bytes.split_at_mut(HEADER);
        let slots = &mut KeySlots::default();
        let len = keys
            .open(&secret, slots, Direction::Initiator, sequence, aad, sealed)
            .expect("its seal");
        for frame in Frames::new(&sealed[..len], kinds::ALL) {
            let frame = frame.expect("a frame that is known");
            match frame.kind {
                FrameKind::LOG => {
                    let log = &mut LogReceiver::new(1_000);
                    let body = [&1u64.to_le_bytes(), &frame.body[8..]].concat();
                    log.receive(&body, |record| {
                        let record = Record::read(record).unwrap_or_else(|| panic!("{name} is no record any more"));
                        found.push(format!("{record:?}"));
                    })
                    .expect("a log frame");
                }
                kinds::PUBLISH => {
                    let publish = Publish::read(frame.body).expect("a publish frame");
                    found.push(format!("publish {} {} {}", publish.handle, publish.low, publish.first));
                }
                _ => assert_eq!(frame.kind, FrameKind::CLOSE),
            }
        }
    }
    assert_eq!(found.len(), 6, "{found:#?}");
    for (found, said) in found.iter().zip([
        "Authenticate",
        "Join",
        "Open",
        "publish 5 1 1",
        "Join",
        "Leave { handle: 9 }",
    ]) {
        assert!(found.contains(said), "{found} is not {said}");
    }
    assert!(
        found[1].contains("request: 1") && found[4].contains("offset"),
        "{found:#?}"
    );
}
