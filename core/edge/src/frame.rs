//! Publications built once per encoding and shared by all receivers.
//!
//! Owns: [`Frame`]. Must not know: receivers, WebSocket heads (each receiver's own).

use bytes::Bytes;

use crate::protocol::{Encoding, Publication, Push, Replies};

/// Joined messages of one encoding. A clone shares the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    encoding: Encoding,
    bytes: Bytes,
}

impl Frame {
    /// A frame of a channel's publications, until it has `bytes_max` or more; at least one. `id`, if not 0, stands for the
    /// channel's name. Returns how many it holds. Data is checked to be JSON here, once for all receivers.
    pub fn publications<'a>(
        encoding: Encoding,
        channel: &str,
        id: i64,
        publications: impl IntoIterator<Item = Publication<'a>>,
        bytes_max: usize,
    ) -> Option<(Frame, usize)> {
        let (mut replies, mut count) = (Replies::new(encoding), 0);
        for publication in publications {
            replies.push(channel, id, &Push::Publication(&publication));
            count += 1;
            if replies.bytes().len() >= bytes_max {
                break;
            }
        }
        (count > 0).then(|| (Frame::from(replies), count))
    }

    /// A frame of one push.
    pub fn push(encoding: Encoding, channel: &str, id: i64, push: &Push<'_>) -> Frame {
        let mut replies = Replies::new(encoding);
        replies.push(channel, id, push);
        Frame::from(replies)
    }

    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl From<Replies> for Frame {
    fn from(replies: Replies) -> Frame {
        Frame {
            encoding: replies.encoding(),
            bytes: Bytes::from(replies.into_bytes()),
        }
    }
}
