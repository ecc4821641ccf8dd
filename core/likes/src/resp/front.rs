//! Connections, batches and the order of replies.
//!
//! Owns which reply waits for which record. Knows no socket and no log: the owner passes in a socket's bytes, makes
//! batches durable and reports that.

mod replies;
use super::commands::{self, Command, Kind, Shape};
use super::parser::{self, Arguments};
use super::questions;
use super::session::{self, Session};
use super::settings::Settings;
use super::slots::{slot, Cluster};
use crate::engine::Engine;
use crate::leaderboards::window;
use crate::limits::{NOT_OFFSETS_MAX, SEGMENT_IDS};
use crate::record::{BitOp, Record};

/// Maximum number of replies that one connection may wait for before its further commands stay unparsed: 64 pipelines
/// of 64.
const WAITING_MAX: u32 = 4_096;

/// Maximum bytes of unread replies or of waiting commands of a connection before its further commands stay unparsed.
const HELD_BYTES_MAX: usize = 1 << 20;

/// Maximum bytes of records in a batch before further commands stay unparsed. One command adds up to 0.6 MB, and the
/// journal 4 bytes per record of at least 18: a batch stays below the journal's 4 MiB per group.
const BATCH_BYTES_MAX: usize = 2 << 20;

/// Maximum number of commands of one transaction: all go into one batch, which has space for them even if it was
/// full.
const TRANSACTION_MAX: usize = 1_024;

/// Maximum bytes of their arguments.
const TRANSACTION_BYTES_MAX: usize = 512 << 10;

/// The reply to a like of one of several kinds whose items are on different partitions.
const APART: &str = "CROSSSLOT A like of this kind takes others back, whose items have another slot: give their keys one hash tag, as like:{7} and dislike:{7}";

/// The connection of records that no client asked for.
const NOBODY: u32 = u32::MAX;

/// Identifies one connection; a number is reused only after its connection was closed and all its replies are
/// settled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionId(pub u32);

#[derive(Default)]
struct Connection {
    session: Session,
    /// Bytes not parsed yet.
    unparsed: Vec<u8>,
    replies: Vec<u8>,
    /// Operations in batches.
    waiting: u32,
    /// Upper bound on the bytes of their commands.
    waiting_bytes: usize,
    /// The batch of the last operation.
    batch: u64,
    /// The connection reads no more, and closes once its replies are written.
    ends: bool,
    /// The socket is closed.
    gone: bool,
    ready: bool,
    /// Unparsed because the batch is full.
    stalled: bool,
    transaction: Option<Transaction>,
}

/// Commands between `MULTI` and `EXEC`.
#[derive(Default)]
struct Transaction {
    commands: Vec<Vec<Vec<u8>>>,
    bytes: usize,
    /// One command was refused, so none is executed.
    refused: bool,
}

/// The operations of a batch, in order.
enum Operation {
    /// Dense ids for the changes behind it.
    Segment,
    Change {
        connection: u32,
        shape: Shape,
    },
    /// A query or a session's command that follows a change of its connection.
    Later {
        connection: u32,
        command: &'static Command,
        arguments: Vec<Vec<u8>>,
    },
    /// An error that follows a change of its connection.
    Error {
        connection: u32,
        text: String,
    },
    /// A status that follows a change of its connection.
    Status {
        connection: u32,
        text: &'static str,
    },
    /// The array header of a transaction's replies, after a change of its connection.
    Array {
        connection: u32,
        len: usize,
    },
}

/// Records prefetched before the first of them is applied: their users' memory fits into the first two caches.
const AHEAD: usize = 128;

#[derive(Default)]
struct Batch {
    number: u64,
    bytes: Vec<u8>,
    /// Where each record ends.
    ends: Vec<usize>,
    operations: Vec<Operation>,
}

/// Dense ids that records in batches will bring and use.
#[derive(Clone, Copy, Default)]
struct Ids {
    coming: u64,
    wanted: u64,
    next_segment: Option<u32>,
}

/// Counters of answered pages of feeds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Feeds {
    pub pages: u64,
    /// Items of all pages.
    pub items: u64,
}

struct Suspension {
    text: String,
    changes_too: bool,
}

/// All clients of one log's likes.
///
/// For each connection the owner calls [`Front::open`], then [`Front::feed`] with the bytes of its socket, and at the
/// end [`Front::close`]. It makes the records of [`Front::begin_batch`] durable and reports
/// [`Front::batch_is_durable`], or [`Front::batch_failed`]. [`Front::ready`] and [`Front::take_replies`] return what
/// must be written to the sockets.
pub struct Front {
    engine: Engine,
    settings: Settings,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    sessions: u64,
    commands: u64,
    feeds: Feeds,
    collecting: Batch,
    in_flight: Option<Batch>,
    ids: Ids,
    ready: Vec<u32>,
    stalled: Vec<u32>,
    /// Why changes are refused permanently.
    refusal: Option<String>,
    /// Why the last batch is not in the log; `None` after the next success.
    trouble: Option<String>,
    /// Number of changes since the start that failed.
    not_taken: u64,
    /// Why no item is served at present.
    suspension: Option<Suspension>,
    arguments: Arguments,
}

impl Front {
    pub fn new(engine: Engine, settings: Settings) -> Front {
        Front {
            engine,
            settings,
            connections: Vec::new(),
            free: Vec::new(),
            sessions: 0,
            commands: 0,
            feeds: Feeds::default(),
            collecting: Batch {
                number: 1,
                ..Batch::default()
            },
            in_flight: None,
            ids: Ids::default(),
            ready: Vec::new(),
            stalled: Vec::new(),
            refusal: None,
            trouble: None,
            not_taken: 0,
            suspension: None,
            arguments: Arguments::default(),
        }
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// For queries that build rankings, and for write-behind. Records must go through the front.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Why changes are refused permanently, if they are.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Why the last change failed, for example because of a full disk; `None` after the next success.
    pub fn trouble(&self) -> Option<&str> {
        self.refusal.as_deref().or(self.trouble.as_deref())
    }

    /// Number of changes since the start that the log did not accept.
    pub fn not_taken(&self) -> u64 {
        self.not_taken
    }

    /// Clients that are connected, and commands since the start.
    pub fn traffic(&self) -> (usize, u64) {
        (self.connections.len() - self.free.len(), self.commands)
    }

    /// Pages of feeds that were answered since the start.
    pub fn feeds(&self) -> Feeds {
        self.feeds
    }

    /// Whether changes wait for a batch, or for their batch to be durable.
    pub fn is_pending(&self) -> bool {
        self.in_flight.is_some() || !self.collecting.operations.is_empty()
    }

    /// From now on queries, and changes if `changes_too`, get `text`, which begins with an error's code, as their
    /// reply; `None`: they are served again.
    ///
    /// For an owner that is not sure that it still is the owner: another one may have changed the data. Changes in
    /// batches still get the reply that their log decides.
    pub fn suspend(&mut self, text: Option<String>, changes_too: bool) {
        self.suspension = text.map(|text| Suspension { text, changes_too });
    }

    /// The log has another owner, or is served elsewhere: drops everything. Call it while nothing is pending.
    pub fn forget(&mut self) {
        assert!(!self.is_pending(), "every change has its reply");
        self.engine = Engine::new(self.engine.options());
        self.ids = Ids::default();
    }

    /// Replaces users and passwords for later `AUTH`s; authenticated clients stay.
    pub fn set_passwords(&mut self, passwords: Vec<(String, String)>) {
        self.settings.passwords = passwords;
    }

    pub fn set_cluster(&mut self, cluster: Option<Cluster>) {
        self.settings.cluster = cluster;
    }

    /// A client has connected.
    pub fn open(&mut self) -> ConnectionId {
        self.sessions += 1;
        let authenticated = self.settings.passwords.is_empty();
        let session = Session::new(self.sessions, authenticated);
        let connection = Some(Connection {
            session,
            ..Connection::default()
        });
        match self.free.pop() {
            Some(place) => {
                self.connections[place as usize] = connection;
                ConnectionId(place)
            }
            None => {
                self.connections.push(connection);
                ConnectionId(self.connections.len() as u32 - 1)
            }
        }
    }

    /// The client's socket is closed. Its changes in batches stay.
    pub fn close(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connection(id.0) {
            connection.gone = true;
            connection.ends = true;
            connection.unparsed = Vec::new();
        }
        self.free_if_done(id.0);
    }

    /// Takes a socket's bytes. An empty slice resumes parsing bytes that a full connection left unparsed.
    pub fn feed(&mut self, id: ConnectionId, bytes: &[u8], now_ms: u64) {
        let Some(connection) = self.connection(id.0) else {
            return;
        };
        if connection.ends {
            return;
        }
        if connection.unparsed.is_empty() {
            let used = self.run(id.0, bytes, now_ms);
            if let Some(connection) = self.connection(id.0) {
                connection.unparsed.extend_from_slice(&bytes[used..]);
            }
        } else {
            let mut unparsed = std::mem::take(&mut connection.unparsed);
            unparsed.extend_from_slice(bytes);
            let used = self.run(id.0, &unparsed, now_ms);
            unparsed.drain(..used);
            if let Some(connection) = self.connection(id.0) {
                connection.unparsed = unparsed;
            }
        }
    }

    /// Whether the connection is full: the owner must not read the socket until it is not.
    pub fn is_full(&self, id: ConnectionId) -> bool {
        self.connections
            .get(id.0 as usize)
            .and_then(Option::as_ref)
            .is_some_and(Connection::is_full)
    }

    /// Whether bytes wait that a full connection left unparsed, or that are no whole command yet.
    pub fn has_unparsed(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(id.0 as usize).and_then(Option::as_ref);
        connection.is_some_and(|connection| !connection.unparsed.is_empty())
    }

    /// Whether all whole commands were executed and their replies taken.
    pub fn is_done(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(id.0 as usize).and_then(Option::as_ref);
        connection
            .is_none_or(|connection| connection.waiting == 0 && connection.replies.is_empty() && !connection.is_full())
    }

    /// Whether to close the socket once its replies are written.
    pub fn ends(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(id.0 as usize).and_then(Option::as_ref);
        connection.is_none_or(|connection| connection.ends && connection.waiting == 0)
    }

    /// The connections that have replies since the last call.
    pub fn ready(&mut self) -> Vec<ConnectionId> {
        let ready = std::mem::take(&mut self.ready);
        for &place in &ready {
            if let Some(connection) = self.connection(place) {
                connection.ready = false;
            }
        }
        ready.into_iter().map(ConnectionId).collect()
    }

    /// The replies to write to the socket.
    pub fn take_replies(&mut self, id: ConnectionId) -> Vec<u8> {
        self.connection(id.0)
            .map(|connection| std::mem::take(&mut connection.replies))
            .unwrap_or_default()
    }

    /// Parses and runs commands while there is space; returns the bytes used.
    fn run(&mut self, place: u32, bytes: &[u8], now_ms: u64) -> usize {
        let mut arguments = std::mem::take(&mut self.arguments);
        let mut used = 0;
        loop {
            let batch_is_full = self.collecting.bytes.len() >= BATCH_BYTES_MAX;
            let Some(connection) = self.connection(place) else {
                break;
            };
            if connection.is_full() {
                break;
            }
            if batch_is_full {
                self.stall(place);
                break;
            }
            if connection.ends || connection.session.quits {
                used = bytes.len();
                break;
            }
            match parser::parse(&bytes[used..], &mut arguments) {
                Ok(None) => break,
                Ok(Some(len)) => {
                    let (mut few, mut many) = ([&[][..]; 8], Vec::new());
                    let words = arguments.words(&bytes[used..], &mut few, &mut many);
                    if !words.is_empty() {
                        self.command(place, words, now_ms);
                    }
                    used += len;
                }
                Err(error) => {
                    connection.ends = true;
                    self.error(place, format!("ERR Protocol error: {}", error.text()));
                    used = bytes.len();
                    break;
                }
            }
        }
        self.arguments = arguments;
        used
    }

    fn command(&mut self, place: u32, words: &[&[u8]], now_ms: u64) {
        self.commands += 1;
        if is_of_http(words[0]) {
            return self.hang_up(place);
        }
        let command = match self.allowed(place, words) {
            Ok(command) => command,
            Err(text) => {
                if let Some(transaction) = self.transaction(place) {
                    transaction.refused = true;
                }
                return self.error(place, text);
            }
        };
        if matches!(command.name, "MULTI" | "EXEC" | "DISCARD") {
            return self.transact(place, command, now_ms);
        }
        match self.transaction(place) {
            Some(transaction) if command.name != "QUIT" => {
                let queued = transaction.queue(words);
                self.say(place, queued);
            }
            _ => self.carry_out(place, command, words, now_ms),
        }
    }

    /// The command, if it exists and this client may use it here.
    fn allowed(&self, place: u32, words: &[&[u8]]) -> Result<&'static Command, String> {
        let Some(command) = Command::find(words[0]) else {
            return Err(unknown(words));
        };
        if !command.takes(words.len()) {
            return Err(session::wrong_number(command.name));
        }
        let connection = self.connections.get(place as usize).and_then(Option::as_ref);
        let authenticated = connection.is_some_and(|connection| connection.session.authenticated);
        if !authenticated && !matches!(command.name, "AUTH" | "HELLO" | "QUIT") {
            return Err("NOAUTH Authentication required.".into());
        }
        if command.kind != Kind::Session {
            self.serves(command, words)?;
        }
        Ok(command)
    }

    /// Closes a connection without a reply: a web page made a browser send HTTP here, with commands in the body.
    fn hang_up(&mut self, place: u32) {
        if let Some(connection) = self.connection(place) {
            connection.ends = true;
            connection.transaction = None;
            connection.unparsed = Vec::new();
        }
        self.mark_ready(place);
    }

    fn transaction(&mut self, place: u32) -> Option<&mut Transaction> {
        self.connection(place)?.transaction.as_mut()
    }

    fn transact(&mut self, place: u32, command: &Command, now_ms: u64) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        if command.name == "MULTI" {
            if connection.transaction.is_some() {
                return self.error(place, "ERR MULTI calls can not be nested".into());
            }
            connection.transaction = Some(Transaction::default());
            return self.say(place, Ok("OK"));
        }
        let Some(transaction) = connection.transaction.take() else {
            return self.error(place, format!("ERR {} without MULTI", command.name));
        };
        if command.name == "DISCARD" {
            return self.say(place, Ok("OK"));
        }
        if transaction.refused {
            return self.error(
                place,
                "EXECABORT Transaction discarded because of previous errors.".into(),
            );
        }
        let len = transaction.commands.len();
        self.array(place, len);
        for words in &transaction.commands {
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            match self.allowed(place, &words) {
                Ok(command) => self.carry_out(place, command, &words, now_ms),
                Err(text) => self.error(place, text), // it was served when it was queued
            }
        }
    }

    fn carry_out(&mut self, place: u32, command: &'static Command, words: &[&[u8]], now_ms: u64) {
        if command.kind == Kind::Change {
            return self.change(place, command, words, now_ms);
        }
        let Some(connection) = self.connection(place) else {
            return;
        };
        if connection.waiting == 0 {
            return self.answer(place, command, words, now_ms);
        }
        connection.session.quits |= command.name == "QUIT"; // nothing after it is read
        connection.waiting_bytes += words.iter().map(|word| word.len()).sum::<usize>();
        let arguments = words.iter().map(|word| word.to_vec()).collect();
        self.wait(
            place,
            Operation::Later {
                connection: place,
                command,
                arguments,
            },
        );
    }

    /// Refuses keys that another node serves, and everything while the port serves nothing.
    fn serves(&self, command: &Command, words: &[&[u8]]) -> Result<(), String> {
        if let Some(suspension) = &self.suspension {
            if suspension.changes_too || command.kind != Kind::Change {
                return Err(suspension.text.clone());
            }
        }
        let Some(cluster) = &self.settings.cluster else {
            return Ok(());
        };
        let Some((first, others)) = command.keys(words).split_first() else {
            return match cluster.door || cluster.nodes[cluster.me].slots.is_empty() {
                true => Err("CLUSTERDOWN This port serves no slot: use a node of CLUSTER SLOTS".into()),
                false => Ok(()),
            };
        };
        let reads_ranks = command.name.starts_with('Z') && command.kind == Kind::Question;
        if reads_ranks && cluster.nodes.len() > 1 && Engine::is_ranking(first) {
            return Err(
                "CROSSSLOT A ranking is on all partitions: `muster rank` and HTTP merge it, LIKE.TOP answers for one"
                    .into(),
            );
        }
        let number = slot(first);
        let here = |number: u16| cluster.nodes[cluster.me].serves(number) && !cluster.door;
        if let Some((_, leaderboard)) = window(first).filter(|_| reads_ranks) {
            // A window is where its leaderboard is, whatever slot its own key has.
            match (here(slot(leaderboard)), here(number)) {
                (true, _) => return Ok(()),
                (false, true) => return Err(
                    "CROSSSLOT The leaderboard of this window may be on another partition: give it a name with a hash \
                         tag, as {game:7}, or use `muster likes leaderboard` or HTTP"
                        .into(),
                ),
                _ => {}
            }
        }
        if command.spans_slots() {
            if others.iter().any(|key| here(slot(key)) != here(number)) {
                return Err(
                    "CROSSSLOT Some items belong to another partition: ask each partition for its own items".into(),
                );
            }
        } else if others.iter().any(|key| slot(key) != number) {
            return Err("CROSSSLOT Keys in request don't hash to the same slot".into());
        }
        if here(number) {
            return Ok(());
        }
        match cluster.owner(number).filter(|&owner| owner != cluster.me) {
            Some(owner) => {
                let node = &cluster.nodes[owner];
                Err(format!("MOVED {number} {}:{}", node.host, node.port))
            }
            None => Err("CLUSTERDOWN Hash slot not served".into()),
        }
    }

    fn change(&mut self, place: u32, command: &'static Command, words: &[&[u8]], now_ms: u64) {
        if let Some(text) = self.refusal.clone() {
            return self.error(place, text);
        }
        if let Err(text) = admitted(&self.engine, command, words) {
            return self.error(place, text.into());
        }
        let others = match command.name == "SETBIT" && words[3] == b"1" {
            true => self.settings.excluded(words[1]),
            false => Vec::new(),
        };
        if self.settings.cluster.is_some() && others.iter().any(|key| slot(key) != slot(words[1])) {
            return self.error(place, APART.into());
        }
        let (engine, ids, batch) = (&self.engine, &mut self.ids, &mut self.collecting);
        let mut waiting = 0;
        let result = commands::records(command, words, &others, now_ms, |record, shape| {
            let wanted = match &record {
                Record::Set { likes: true, .. } | Record::OneOf { .. } => 1,
                Record::BitOp { op: BitOp::Not, .. } => NOT_OFFSETS_MAX,
                _ => 0,
            };
            ids.wanted += wanted;
            if wanted > 0 && engine.users.ids_left() + ids.coming < ids.wanted {
                if let Some(first) = ids
                    .next_segment
                    .max(engine.users.next_segment())
                    .filter(|&first| first <= u32::MAX - SEGMENT_IDS)
                {
                    ids.coming += u64::from(SEGMENT_IDS);
                    ids.next_segment = Some(first + SEGMENT_IDS);
                    Record::Segment {
                        first,
                        ids: SEGMENT_IDS,
                    }
                    .encode(&mut batch.bytes);
                    batch.ends.push(batch.bytes.len());
                    batch.operations.push(Operation::Segment);
                }
            }
            record.encode(&mut batch.bytes);
            batch.ends.push(batch.bytes.len());
            batch.operations.push(Operation::Change {
                connection: place,
                shape,
            });
            waiting += 1;
        });
        let number = batch.number;
        if let Some(connection) = self.connection(place) {
            if waiting > 0 {
                connection.waiting += waiting;
                connection.batch = number;
                connection.waiting_bytes += words.iter().map(|word| word.len()).sum::<usize>();
            }
        }
        if let Err(text) = result {
            self.error(place, text.into());
        }
    }

    fn connection(&mut self, place: u32) -> Option<&mut Connection> {
        self.connections.get_mut(place as usize)?.as_mut()
    }
}

impl Transaction {
    /// Queues a command; returns the reply to the client.
    fn queue(&mut self, words: &[&[u8]]) -> Result<&'static str, String> {
        self.bytes += words.iter().map(|word| word.len()).sum::<usize>();
        if self.commands.len() >= TRANSACTION_MAX || self.bytes > TRANSACTION_BYTES_MAX {
            self.refused = true;
            self.commands = Vec::new();
            return Err(format!(
                "ERR a transaction has at most {TRANSACTION_MAX} commands and {TRANSACTION_BYTES_MAX} bytes"
            ));
        }
        self.commands.push(words.iter().map(|word| word.to_vec()).collect());
        Ok("QUEUED")
    }
}

impl Connection {
    fn is_full(&self) -> bool {
        self.stalled
            || self.waiting >= WAITING_MAX
            || self.waiting_bytes >= HELD_BYTES_MAX
            || self.replies.len() >= HELD_BYTES_MAX
    }
}

/// Whether this is the first word of an HTTP request, or of a header line that no browser leaves out: as in Redis,
/// never a command.
fn is_of_http(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"POST") || word.eq_ignore_ascii_case(b"Host:")
}

/// Refuses changes of users that are being erased, and commands that would block the node's loop for too long.
fn admitted(engine: &Engine, command: &Command, words: &[&[u8]]) -> Result<(), &'static str> {
    let refused = match command.name {
        "SETBIT" => commands::unsigned(words[2]).is_some_and(|user| engine.refuses(user)),
        "ZINCRBY" => engine.refuses_member(words[3]),
        "ZADD" => words[3..]
            .iter()
            .rev()
            .step_by(2)
            .any(|name| engine.refuses_member(name)),
        _ => false,
    };
    if refused {
        return Err(commands::ERASING);
    }
    if command.name != "BITOP" {
        return Ok(());
    }
    let sources = words.get(3..).unwrap_or(&[]);
    let long = |key: &&[u8]| engine.string_bytes(key) > NOT_OFFSETS_MAX / 8;
    if words[1].eq_ignore_ascii_case(b"NOT") && sources.len() == 1 && sources.iter().any(long) {
        return Err("ERR BITOP NOT supports keys of at most 65536 bits: each clear bit becomes a user");
    }
    questions::few_enough_to_combine(engine, sources)
}

fn unknown(words: &[&[u8]]) -> String {
    let shown = |word: &&[u8]| format!("'{}' ", String::from_utf8_lossy(&word[..word.len().min(128)]));
    let name = String::from_utf8_lossy(&words[0][..words[0].len().min(128)]).into_owned();
    let mut beginning = String::new();
    for word in &words[1..] {
        if beginning.len() >= 128 {
            break;
        }
        beginning += &shown(word);
    }
    match commands::instead(words[0]) {
        Some(text) => format!("ERR unknown command '{name}': {text}"),
        None => format!("ERR unknown command '{name}', with args beginning with: {beginning}"),
    }
}
