//! Redis's commands on sets: an item is the set of its likers.
//!
//! Owns their replies and errors. A member is a user in decimal digits, as in `SETBIT`; no other text is one.

use super::commands::{unsigned, Command};
use super::questions::item;
use super::reply::Reply;
use super::scan;
use crate::engine::Engine;

/// Writes the reply, or returns the error's text.
pub(crate) fn answer(
    engine: &Engine,
    command: &Command,
    arguments: &[&[u8]],
    reply: &mut Reply,
) -> Result<(), &'static str> {
    let key = arguments[1];
    let likes = |member: &[u8]| i64::from(unsigned(member).is_some_and(|user| engine.likes(key, user)));
    match command.name {
        "SISMEMBER" => {
            item(engine, key)?;
            reply.integer(likes(arguments[2]));
        }
        "SMISMEMBER" => {
            item(engine, key)?;
            reply.array(arguments.len() - 2);
            arguments[2..].iter().for_each(|member| reply.integer(likes(member)));
        }
        "SCARD" => {
            item(engine, key)?;
            reply.integer(engine.count(key) as i64);
        }
        "SSCAN" => {
            let cursor = scan::cursor(arguments[2])?;
            item(engine, key)?;
            if engine.count(key) == 0 {
                scan::page(reply, 0, &[]); // Redis has no empty set, and reads no further
                return Ok(());
            }
            let options = scan::Options::parse(&arguments[3..], false)?;
            let (next, users) = engine.scan_likers(key, cursor, options.count);
            let users: Vec<String> = users.iter().map(u64::to_string).collect();
            let members: Vec<&[u8]> = users.iter().map(String::as_bytes).collect();
            scan::page(reply, next, &options.matching(members));
        }
        name => unreachable!("{name} is a command on sets that is not handled"),
    }
    Ok(())
}
