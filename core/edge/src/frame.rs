//! Publications built once per encoding and shared by all receivers.
//!
//! Owns: [`Frame`]. Must not know: receivers, WebSocket heads (each receiver's own).

use std::borrow::Cow;

use bytes::Bytes;

use crate::fossil;
use crate::protocol::{as_json, Encoding, Publication, Push, Replies};

/// The tag of data that is no JSON, for a JSON client.
const BASE64: (&str, &str) = ("encoding", "base64");

/// A frame whose buffer has more to spare is moved to one of its own size.
const SPARE_BYTES_MAX: usize = 1_024;

/// Data as a client that takes deltas holds it: bytes, or a text of JSON; and whether it is the message's own.
pub fn held(encoding: Encoding, data: &[u8]) -> (Cow<'_, [u8]>, bool) {
    match encoding {
        Encoding::Protobuf => (data.into(), true),
        Encoding::Json => {
            let (text, is_json) = as_json(data);
            (text.into(), is_json)
        }
    }
}

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

    /// The same for clients that take deltas. `base`: the data of the message before, if the clients have it.
    pub fn deltas<'a>(
        encoding: Encoding,
        channel: &str,
        id: i64,
        base: Option<&[u8]>,
        publications: impl IntoIterator<Item = Publication<'a>>,
    ) -> Option<Frame> {
        let mut replies = Replies::new(encoding);
        let mut before = base.map(|base| held(encoding, base).0.into_owned());
        for publication in publications {
            let (whole, is_own) = held(encoding, publication.data);
            let delta = before.map(|before| fossil::delta(&before, &whole, encoding == Encoding::Json));
            let delta = delta.filter(|delta| delta.len() < whole.len());
            let told = Publication {
                data: delta.as_deref().unwrap_or(&whole),
                delta: delta.is_some(),
                quoted: true,
                tags: match is_own {
                    true => publication.tags,
                    false => {
                        let own = publication.tags.iter().filter(|(name, _)| *name != BASE64.0);
                        own.chain([&BASE64]).copied().collect()
                    }
                },
                ..publication
            };
            replies.push(channel, id, &Push::Publication(&told));
            before = Some(whole.into_owned());
        }
        (!replies.bytes().is_empty()).then(|| Frame::from(replies))
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
        let encoding = replies.encoding();
        let mut bytes = replies.into_bytes();
        // A slow client keeps its frames, and with them what their buffers have to spare.
        if bytes.capacity() - bytes.len() > SPARE_BYTES_MAX {
            bytes.shrink_to_fit();
        }
        Frame {
            encoding,
            bytes: Bytes::from(bytes),
        }
    }
}
