//! The Protobuf encoding: commands out of bytes, by the numbers of their fields.
//!
//! Owns: [`command`], [`varint`] and the numbers. Unknown fields are skipped, whatever their kind; groups, which no client
//! sends, are malformed.

use std::borrow::Cow;

use super::command::{Command, Connect, History, Malformed, Request, SubRefresh, Subscribe};
use super::reply::Position;
use super::tags::Node;

/// Reads a varint. `None`: it is cut.
pub(super) fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if at == 9 && *byte > 1 || at > 9 {
            return Err(Malformed);
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    Ok(None)
}

/// The value of a field.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

impl<'a> Value<'a> {
    fn number(self) -> Result<u64, Malformed> {
        match self {
            Value::Number(number) => Ok(number),
            _ => Err(Malformed),
        }
    }

    fn boolean(self) -> Result<bool, Malformed> {
        Ok(self.number()? != 0)
    }

    /// A number of 32 bits: as all readers do, the upper half is dropped.
    fn int32(self) -> Result<i32, Malformed> {
        Ok(self.number()? as i32)
    }

    fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed),
        }
    }

    fn string(self) -> Result<Cow<'a, str>, Malformed> {
        std::str::from_utf8(self.bytes()?)
            .map(Cow::Borrowed)
            .map_err(|_| Malformed)
    }
}

/// The fields of a message, one by one.
fn each<'a>(
    mut bytes: &'a [u8],
    mut take: impl FnMut(u64, Value<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let number = |bytes: &mut &'a [u8]| {
        let (number, len) = varint(bytes)?.ok_or(Malformed)?;
        *bytes = &bytes[len..];
        Ok::<u64, Malformed>(number)
    };
    let part = |bytes: &mut &'a [u8], len: u64| {
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        let (part, rest) = bytes.split_at_checked(len).ok_or(Malformed)?;
        *bytes = rest;
        Ok::<&'a [u8], Malformed>(part)
    };
    while !bytes.is_empty() {
        let key = number(&mut bytes)?;
        let value = match key & 7 {
            0 => Value::Number(number(&mut bytes)?),
            1 => part(&mut bytes, 8).map(|_| Value::Other)?,
            2 => {
                let len = number(&mut bytes)?;
                Value::Bytes(part(&mut bytes, len)?)
            }
            5 => part(&mut bytes, 4).map(|_| Value::Other)?,
            _ => return Err(Malformed),
        };
        match key >> 3 {
            0 => return Err(Malformed),
            field => take(field, value)?,
        }
    }
    Ok(())
}

/// Reads one command.
pub(super) fn command(bytes: &[u8]) -> Result<Command<'_>, Malformed> {
    let (mut id, mut found) = (0, None);
    each(bytes, |field, value| {
        let request = match field {
            1 => {
                id = value.number()? as u32;
                return Ok(());
            }
            4 => Request::Connect(Box::new(connect(value.bytes()?)?)),
            5 => Request::Subscribe(Box::new(subscribe(value.bytes()?)?)),
            6 => Request::Unsubscribe {
                channel: channel(value.bytes()?)?,
            },
            7 => publish(value.bytes()?)?,
            8 => Request::Presence {
                channel: channel(value.bytes()?)?,
            },
            9 => Request::PresenceStats {
                channel: channel(value.bytes()?)?,
            },
            10 => Request::History(history(value.bytes()?)?),
            11 => Request::Ping,
            12 => Request::Send {
                data: data(value.bytes()?)?,
            },
            13 => rpc(value.bytes()?)?,
            14 => Request::Refresh {
                token: channel(value.bytes()?)?,
            },
            15 => Request::SubRefresh(sub_refresh(value.bytes()?)?),
            _ => return Ok(()),
        };
        match found.replace(request) {
            Some(_) => Err(Malformed),
            None => Ok(()),
        }
    })?;
    Ok(Command {
        id,
        request: found.unwrap_or(Request::Pong),
    })
}

/// The first field, a string: the channel or the token.
fn channel(bytes: &[u8]) -> Result<Cow<'_, str>, Malformed> {
    let mut channel = Cow::default();
    each(bytes, |field, value| {
        if field == 1 {
            channel = value.string()?;
        }
        Ok(())
    })?;
    Ok(channel)
}

fn data(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut data = None;
    each(bytes, |field, value| {
        if field == 1 {
            data = Some(value.bytes()?);
        }
        Ok(())
    })?;
    Ok(data)
}

fn connect(bytes: &[u8]) -> Result<Connect<'_>, Malformed> {
    let mut connect = Connect::default();
    each(bytes, |field, value| {
        match field {
            1 => connect.token = value.string()?,
            2 => connect.data = Some(value.bytes()?),
            3 => {
                let (mut name, mut sub) = (Cow::default(), Subscribe::default());
                each(value.bytes()?, |field, value| {
                    match field {
                        1 => name = value.string()?,
                        2 => sub = subscribe(value.bytes()?)?,
                        _ => {}
                    }
                    Ok(())
                })?;
                connect.subs.insert(name.into_owned(), sub);
            }
            4 => connect.name = value.string()?,
            5 => connect.version = value.string()?,
            7 => connect.flag = value.number()? as i64,
            _ => {}
        }
        Ok(())
    })?;
    Ok(connect)
}

fn subscribe(bytes: &[u8]) -> Result<Subscribe<'_>, Malformed> {
    let mut sub = Subscribe::default();
    each(bytes, |field, value| {
        match field {
            1 => sub.channel = value.string()?,
            2 => sub.token = value.string()?,
            3 => sub.recover = value.boolean()?,
            6 => sub.epoch = value.string()?,
            7 => sub.offset = value.number()?,
            8 => sub.data = Some(value.bytes()?),
            9 => sub.positioned = value.boolean()?,
            10 => sub.recoverable = value.boolean()?,
            11 => sub.join_leave = value.boolean()?,
            12 => sub.delta = value.string()?,
            13 => sub.filter = Some(value.bytes()?),
            14 => sub.flag = value.number()? as i64,
            15 => sub.kind = value.int32()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(sub)
}

/// A node of a tags filter, with at most as many levels.
pub(super) fn filter_node(bytes: &[u8], levels: usize) -> Result<Node, Malformed> {
    let below = levels.checked_sub(1).ok_or(Malformed)?;
    let mut node = Node::default();
    each(bytes, |field, value| {
        match field {
            1 => node.op = value.string()?.into_owned(),
            2 => node.key = value.string()?.into_owned(),
            3 => node.cmp = value.string()?.into_owned(),
            4 => node.val = value.string()?.into_owned(),
            5 => node.vals.push(value.string()?.into_owned()),
            6 => node.nodes.push(filter_node(value.bytes()?, below)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(node)
}

fn publish(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let (mut channel, mut data, mut keyed) = (Cow::default(), None, false);
    each(bytes, |field, value| {
        match field {
            1 => channel = value.string()?,
            2 => data = Some(value.bytes()?),
            3 => keyed |= value.int32()? != 0,
            4 => keyed |= !value.string()?.is_empty(),
            _ => {}
        }
        Ok(())
    })?;
    Ok(Request::Publish { channel, data, keyed })
}

fn history(bytes: &[u8]) -> Result<History<'_>, Malformed> {
    let mut history = History::default();
    each(bytes, |field, value| {
        match field {
            1 => history.channel = value.string()?,
            7 => history.limit = value.int32()?,
            8 => history.since = Some(position(value.bytes()?)?),
            9 => history.reverse = value.boolean()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(history)
}

fn position(bytes: &[u8]) -> Result<Position, Malformed> {
    let mut position = Position::default();
    each(bytes, |field, value| {
        match field {
            1 => position.offset = value.number()?,
            2 => position.epoch = value.string()?.into_owned(),
            _ => {}
        }
        Ok(())
    })?;
    Ok(position)
}

fn rpc(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let (mut method, mut data) = (Cow::default(), None);
    each(bytes, |field, value| {
        match field {
            1 => data = Some(value.bytes()?),
            2 => method = value.string()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(Request::Rpc { method, data })
}

fn sub_refresh(bytes: &[u8]) -> Result<SubRefresh<'_>, Malformed> {
    let mut refresh = SubRefresh::default();
    each(bytes, |field, value| {
        match field {
            1 => refresh.channel = value.string()?,
            2 => refresh.token = value.string()?,
            3 => refresh.kind = value.int32()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(refresh)
}
