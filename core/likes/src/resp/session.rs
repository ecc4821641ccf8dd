//! Commands about the connection or the node: greeting, passwords, the table of commands, the cluster, statistics.
//!
//! Owns what a client library asks before it works. Knows no item.

use super::commands::{signed, Command, Kind, COMMANDS, NOT_AN_INTEGER, SYNTAX};
use super::reply::Reply;
use super::settings::Settings;
use super::slots::{slot, Node};
use crate::engine::Engine;

/// The Redis version whose commands and replies these are: client libraries ask for it.
const REDIS_VERSION: &str = "7.0.0";

/// The state that a session's commands change.
#[derive(Default)]
pub(crate) struct Session {
    pub id: u64,
    pub resp3: bool,
    pub authenticated: bool,
    pub quits: bool,
    name: Vec<u8>,
}

impl Session {
    pub fn new(id: u64, authenticated: bool) -> Session {
        Session {
            id,
            authenticated,
            ..Session::default()
        }
    }
}

/// The node's statistics.
pub(crate) struct Figures {
    pub connections: usize,
    pub commands: u64,
}

/// Writes the reply, or returns the error's text.
pub(crate) fn answer(
    session: &mut Session,
    settings: &Settings,
    engine: &Engine,
    figures: &Figures,
    command: &Command,
    arguments: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let mut reply = Reply {
        out,
        resp3: session.resp3,
    };
    match command.name {
        "PING" => match arguments {
            [_] => reply.simple("PONG"),
            [_, text] => reply.bulk(text),
            _ => return Err(wrong_number("ping")),
        },
        "ECHO" => reply.bulk(arguments[1]),
        "QUIT" => {
            session.quits = true;
            reply.simple("OK");
        }
        "ASKING" | "READONLY" | "READWRITE" => reply.simple("OK"),
        "SELECT" => match signed(arguments[1]) {
            Some(0) => reply.simple("OK"),
            Some(_) => return Err("ERR DB index is out of range".into()),
            None => return Err(NOT_AN_INTEGER.into()),
        },
        "AUTH" => {
            let (user, password) = match arguments {
                [_, password] => (&b"default"[..], *password),
                [_, user, password] => (*user, *password),
                _ => return Err(SYNTAX.into()),
            };
            if settings.passwords.is_empty() && arguments.len() == 2 {
                return Err("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?".into());
            }
            authenticate(session, settings, user, password)?;
            reply.simple("OK");
        }
        "HELLO" => hello(session, settings, arguments, out)?,
        "CLIENT" => client(session, arguments, &mut reply)?,
        "COMMAND" => commands(arguments, &mut reply)?,
        "CLUSTER" => cluster(settings, arguments, &mut reply)?,
        "INFO" => reply.bulk(info(settings, engine, figures, &arguments[1..]).as_bytes()),
        name => unreachable!("{name} is a session command that is not handled"), // MULTI, EXEC and DISCARD are the front's
    }
    Ok(())
}

pub(crate) fn wrong_number(name: &str) -> String {
    format!(
        "ERR wrong number of arguments for '{}' command",
        name.to_ascii_lowercase()
    )
}

fn authenticate(session: &mut Session, settings: &Settings, user: &[u8], password: &[u8]) -> Result<(), String> {
    let open = settings.passwords.is_empty() && user == b"default";
    // Every pair is compared in full, so that timing reveals nothing about a password.
    let known = settings.passwords.iter().fold(false, |known, (name, secret)| {
        known | (equal(name.as_bytes(), user) & equal(secret.as_bytes(), password))
    });
    if !open && !known {
        return Err("WRONGPASS invalid username-password pair or user is disabled.".into());
    }
    session.authenticated = true;
    Ok(())
}

fn equal(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |found, (a, b)| found | (a ^ b));
    a.len() == b.len() && differences == 0
}

fn hello(session: &mut Session, settings: &Settings, arguments: &[&[u8]], out: &mut Vec<u8>) -> Result<(), String> {
    let mut resp3 = session.resp3;
    if let Some(version) = arguments.get(1) {
        resp3 = match signed(version) {
            Some(2) => false,
            Some(3) => true,
            Some(_) => return Err("NOPROTO unsupported protocol version".into()),
            None => return Err("ERR Protocol version is not an integer or out of range".into()),
        };
    }
    let mut rest = arguments.get(2..).unwrap_or(&[]);
    let mut name = None;
    while let Some((&word, after)) = rest.split_first() {
        rest = if word.eq_ignore_ascii_case(b"AUTH") && after.len() >= 2 {
            authenticate(session, settings, after[0], after[1])?;
            &after[2..]
        } else if word.eq_ignore_ascii_case(b"SETNAME") && !after.is_empty() {
            nameable(after[0])?;
            name = Some(after[0].to_vec());
            &after[1..]
        } else {
            return Err(format!(
                "ERR Syntax error in HELLO option '{}'",
                String::from_utf8_lossy(word)
            ));
        };
    }
    if !session.authenticated {
        return Err("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time".into());
    }
    session.name = name.unwrap_or_else(|| std::mem::take(&mut session.name));
    session.resp3 = resp3;
    let mut reply = Reply { out, resp3 };
    reply.map(7);
    let mut pair = |name: &str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    pair("server", "muster");
    pair("version", REDIS_VERSION);
    pair(
        "mode",
        if settings.cluster.is_some() {
            "cluster"
        } else {
            "standalone"
        },
    );
    pair("role", "master");
    reply.bulk(b"proto");
    reply.integer(if resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(session.id as i64);
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

fn client(session: &mut Session, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), String> {
    match (arguments[1].to_ascii_uppercase().as_slice(), &arguments[2..]) {
        (b"SETNAME", [name]) => {
            nameable(name)?;
            session.name = name.to_vec();
            reply.simple("OK");
        }
        (b"SETINFO", [_, _]) | (b"NO-EVICT", [_]) => reply.simple("OK"),
        (b"GETNAME", []) if session.name.is_empty() => reply.null(),
        (b"GETNAME", []) => reply.bulk(&session.name),
        (b"ID", []) => reply.integer(session.id as i64),
        _ => return Err(unknown_subcommand("CLIENT", arguments[1])),
    }
    Ok(())
}

/// Refuses a client's name as Redis does: with blanks, `CLIENT LIST` could not be parsed.
fn nameable(name: &[u8]) -> Result<(), String> {
    match name.iter().all(u8::is_ascii_graphic) {
        true => Ok(()),
        false => Err("ERR Client names cannot contain spaces, newlines or special characters.".into()),
    }
}

fn unknown_subcommand(command: &str, word: &[u8]) -> String {
    let word = String::from_utf8_lossy(&word[..word.len().min(128)]).into_owned();
    format!("ERR unknown subcommand or wrong number of arguments for '{word}'. Try {command} HELP.")
}

fn commands(arguments: &[&[u8]], reply: &mut Reply) -> Result<(), String> {
    let describe = |reply: &mut Reply, command: &Command| {
        reply.array(6);
        reply.bulk(command.name.to_ascii_lowercase().as_bytes());
        reply.integer(i64::from(command.arity));
        let flags: &[&str] = match command.kind {
            Kind::Change => &["write"],
            Kind::Question => &["readonly"],
            Kind::Session => &["fast"],
        };
        reply.array(flags.len());
        flags.iter().for_each(|flag| reply.simple(flag));
        reply.integer(i64::from(command.first_key));
        reply.integer(i64::from(command.last_key));
        reply.integer(i64::from(command.first_key != 0));
    };
    match arguments.get(1).map(|word| word.to_ascii_uppercase()).as_deref() {
        None => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(reply, command));
        }
        Some(b"COUNT") => reply.integer(COMMANDS.len() as i64),
        Some(b"DOCS") => reply.map(0),
        Some(b"INFO") => {
            reply.array(arguments.len() - 2);
            for name in &arguments[2..] {
                match Command::find(name) {
                    Some(command) => describe(reply, command),
                    None => reply.null(),
                }
            }
        }
        Some(_) => return Err(unknown_subcommand("COMMAND", arguments[1])),
    }
    Ok(())
}

fn cluster(settings: &Settings, arguments: &[&[u8]], reply: &mut Reply) -> Result<(), String> {
    let word = arguments[1].to_ascii_uppercase();
    if let (b"KEYSLOT", [key]) = (word.as_slice(), &arguments[2..]) {
        reply.integer(i64::from(slot(key)));
        return Ok(());
    }
    let Some(cluster) = &settings.cluster else {
        return Err("ERR This instance has cluster support disabled".into());
    };
    let address = |reply: &mut Reply, node: &Node| {
        reply.bulk(node.host.as_bytes());
        reply.integer(i64::from(node.port));
        reply.bulk(node.id.as_bytes());
    };
    match (word.as_slice(), &arguments[2..]) {
        (b"SLOTS", []) => {
            reply.array(cluster.nodes.iter().map(|node| node.slots.len()).sum());
            for node in &cluster.nodes {
                for &(from, to) in &node.slots {
                    reply.array(3);
                    reply.integer(i64::from(from));
                    reply.integer(i64::from(to));
                    reply.array(3);
                    address(reply, node);
                }
            }
        }
        (b"SHARDS", []) => {
            reply.array(cluster.nodes.len());
            for node in &cluster.nodes {
                reply.map(2);
                reply.bulk(b"slots");
                reply.array(2 * node.slots.len());
                for &(from, to) in &node.slots {
                    reply.integer(i64::from(from));
                    reply.integer(i64::from(to));
                }
                reply.bulk(b"nodes");
                reply.array(1);
                reply.map(7);
                for (name, value) in [
                    ("id", &node.id[..]),
                    ("endpoint", &node.host),
                    ("ip", &node.host),
                    ("role", "master"),
                    ("health", "online"),
                ] {
                    reply.bulk(name.as_bytes());
                    reply.bulk(value.as_bytes());
                }
                reply.bulk(b"port");
                reply.integer(i64::from(node.port));
                reply.bulk(b"replication-offset");
                reply.integer(0);
            }
        }
        (b"NODES", []) => {
            let mut text = String::new();
            for (place, node) in cluster.nodes.iter().enumerate() {
                let me = if place == cluster.me { "myself," } else { "" };
                let (id, host, port) = (&node.id, &node.host, node.port);
                text += &format!("{id} {host}:{port}@{port} {me}master - 0 0 {} connected", cluster.epoch);
                for &(from, to) in &node.slots {
                    text += &if from == to {
                        format!(" {from}")
                    } else {
                        format!(" {from}-{to}")
                    };
                }
                text += "\n";
            }
            reply.bulk(text.as_bytes());
        }
        (b"MYID", []) => reply.bulk(cluster.nodes[cluster.me].id.as_bytes()),
        (b"INFO", []) => {
            let assigned = (0..super::slots::SLOTS)
                .filter(|&slot| cluster.owner(slot).is_some())
                .count();
            let state = if assigned == usize::from(super::slots::SLOTS) {
                "ok"
            } else {
                "fail"
            };
            let size = cluster.nodes.iter().filter(|node| !node.slots.is_empty()).count();
            let (nodes, epoch) = (cluster.nodes.len(), cluster.epoch);
            let text = format!(
                "cluster_state:{state}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{assigned}\r\n\
                 cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{nodes}\r\ncluster_size:{size}\r\n\
                 cluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\ncluster_stats_messages_sent:0\r\n\
                 cluster_stats_messages_received:0\r\ntotal_cluster_links_buffer_limit_exceeded:0\r\n"
            );
            reply.bulk(text.as_bytes());
        }
        _ => return Err(unknown_subcommand("CLUSTER", arguments[1])),
    }
    Ok(())
}

/// The requested sections; all if none is named. As in Redis, a section that does not exist is empty.
fn info(settings: &Settings, engine: &Engine, figures: &Figures, wanted: &[&[u8]]) -> String {
    let mode = if settings.cluster.is_some() {
        "cluster"
    } else {
        "standalone"
    };
    let (version, connections, commands) = (env!("CARGO_PKG_VERSION"), figures.connections, figures.commands);
    let (items, users, likes) = (engine.item_count(), engine.user_count(), engine.like_count());
    let (dirty, offset, cluster) = (
        engine.dirty_len(),
        engine.offset(),
        u8::from(settings.cluster.is_some()),
    );
    let sections = [
        (
            "Server",
            format!("redis_version:{REDIS_VERSION}\r\nredis_mode:{mode}\r\nmuster_version:{version}\r\n"),
        ),
        ("Clients", format!("connected_clients:{connections}\r\n")),
        (
            "Persistence",
            format!("loading:0\r\nlog_offset:{offset}\r\nitems_not_written_behind:{dirty}\r\n"),
        ),
        ("Stats", format!("total_commands_processed:{commands}\r\n")),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".into()),
        ("Cluster", format!("cluster_enabled:{cluster}\r\n")),
        ("Likes", format!("items:{items}\r\nusers:{users}\r\nlikes:{likes}\r\n")),
        ("Keyspace", format!("db0:keys={items},expires=0,avg_ttl=0\r\n")),
    ];
    let whole = ["all", "everything", "default"];
    let named = |name: &str| wanted.iter().any(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    let all = wanted.is_empty() || whole.into_iter().any(named);
    let told = sections.iter().filter(|(name, _)| all || named(name));
    let told: Vec<String> = told.map(|(name, text)| format!("# {name}\r\n{text}")).collect();
    told.join("\r\n")
}
