//! A front with a log in memory.

use muster_likes::resp::{ConnectionId, Front, Settings};
use muster_likes::Engine;

pub const NOW_MS: u64 = 1_790_000_000_000;

pub struct Node {
    pub front: Front,
    pub log: Vec<Vec<u8>>,
    /// Records of the batch in progress.
    pub group: Vec<Vec<u8>>,
}

impl Node {
    pub fn new(settings: Settings) -> Node {
        Node {
            front: Front::new(Engine::default(), settings),
            log: Vec::new(),
            group: Vec::new(),
        }
    }

    pub fn begin(&mut self) -> bool {
        let group = self
            .front
            .begin_batch()
            .map(|records| records.map(<[u8]>::to_vec).collect());
        self.group = group.unwrap_or_default();
        !self.group.is_empty()
    }

    pub fn finish(&mut self) {
        let first = self.log.len() as u64;
        self.log.append(&mut self.group);
        self.front.batch_is_durable(first, NOW_MS);
    }

    pub fn commit_all(&mut self) {
        while self.begin() {
            self.finish();
        }
    }

    /// Feeds the bytes, makes batches durable, and returns the replies.
    pub fn ask(&mut self, id: ConnectionId, bytes: &[u8]) -> Vec<u8> {
        self.front.feed(id, bytes, NOW_MS);
        let mut replies = Vec::new();
        loop {
            self.commit_all();
            let more = self.front.take_replies(id);
            if more.is_empty() {
                return replies;
            }
            replies.extend(more);
            self.front.feed(id, &[], NOW_MS);
        }
    }
}

/// A command as an array of bulk strings.
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// The words of a line, split at spaces, as a command.
pub fn line(line: &str) -> Vec<u8> {
    command(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}
