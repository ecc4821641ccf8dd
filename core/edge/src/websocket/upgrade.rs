//! The upgrade request: its head, its checks, and the answers.
//!
//! Owns: [`Upgrade`], [`Refusal`], [`Origins`]. Must not know: what is spoken afterwards, but for the names of encodings.

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use ring::digest;

use crate::limits::{HEADERS_MAX, HEAD_BYTES_MAX};
use crate::protocol::Encoding;

const JSON: &str = "centrifuge-json";
const PROTOBUF: &str = "centrifuge-protobuf";

/// Web sites whose pages may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// The site that has the edge's own host and port.
    #[default]
    SameHost,
    Any,
    /// These, with a scheme. One `*` stands for any part of the host.
    Listed(Vec<String>),
}

impl Origins {
    /// Programs that are no browsers send no origin.
    fn allow(&self, origin: &str, host: &str) -> bool {
        match self {
            Origins::Any => true,
            Origins::SameHost => origin
                .split_once("://")
                .is_some_and(|(_, own)| own.eq_ignore_ascii_case(host)),
            Origins::Listed(listed) => listed.iter().any(|pattern| matches(pattern, origin)),
        }
    }
}

fn matches(pattern: &str, origin: &str) -> bool {
    let same = |one: &[u8], other: &[u8]| one.eq_ignore_ascii_case(other);
    match pattern.split_once('*') {
        None => same(pattern.as_bytes(), origin.as_bytes()),
        Some((head, tail)) => {
            let (head, tail, origin) = (head.as_bytes(), tail.as_bytes(), origin.as_bytes());
            let Some(end) = origin.len().checked_sub(tail.len()).filter(|end| *end > head.len()) else {
                return false;
            };
            // The star stands for a part of a host: no scheme, no port, no path.
            let part = &origin[head.len()..end];
            let host = part.iter().all(|byte| !matches!(byte, b'/' | b':' | b'@'));
            same(&origin[..head.len()], head) && same(&origin[end..], tail) && host
        }
    }
}

/// An upgrade that is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    pub encoding: Encoding,
    /// Whether the client wants WebSocket's own pings, in place of the protocol's.
    pub native_pings: bool,
    accept: String,
    subprotocol: Option<&'static str>,
}

impl Upgrade {
    /// Writes the answer.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n");
        put_header(out, "Sec-WebSocket-Accept", &self.accept);
        if let Some(subprotocol) = self.subprotocol {
            put_header(out, "Sec-WebSocket-Protocol", subprotocol);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Why there is no upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no HTTP/1.1 request, or too long.
    Malformed(&'static str),
    /// It asks for another path.
    Path,
    /// It is no upgrade to WebSocket.
    NoUpgrade(&'static str),
    /// Another version of WebSocket.
    Version,
    /// A page of another site.
    Origin(String),
    /// The edge takes no more clients for now.
    Busy { retry_s: u32 },
}

impl Refusal {
    /// Writes the answer, after which the stream ends.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (status, more, text) = match self {
            Refusal::Malformed(reason) => ("400 Bad Request", None, (*reason).to_owned()),
            Refusal::Path => ("404 Not Found", None, "no such path on the edge".to_owned()),
            Refusal::NoUpgrade(reason) => (
                "426 Upgrade Required",
                Some(("Upgrade", "websocket".to_owned())),
                format!("the edge speaks WebSocket only: {reason}"),
            ),
            Refusal::Version => (
                "426 Upgrade Required",
                Some(("Sec-WebSocket-Version", "13".to_owned())),
                "the edge speaks version 13 of WebSocket only".to_owned(),
            ),
            Refusal::Origin(origin) => (
                "403 Forbidden",
                None,
                format!("origin {origin} is not allowed; add it to edge.origins"),
            ),
            Refusal::Busy { retry_s } => (
                "503 Service Unavailable",
                Some(("Retry-After", retry_s.to_string())),
                "the edge takes no more clients for now".to_owned(),
            ),
        };
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_bytes());
        out.extend_from_slice(b"\r\n");
        put_header(out, "Content-Type", "text/plain; charset=utf-8");
        put_header(out, "Content-Length", &(text.len() + 1).to_string());
        put_header(out, "Connection", "close");
        if let Some((name, value)) = more {
            put_header(out, name, &value);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(text.as_bytes());
        out.push(b'\n');
    }
}

fn put_header(out: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
}

/// What the bytes at hand hold of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Headed {
    /// Its end is still to come.
    Incomplete,
    /// It is granted, and has this length.
    Upgrade(Upgrade, usize),
    Refused(Refusal),
}

impl Headed {
    /// Reads the head of a request at `path`.
    pub fn read(bytes: &[u8], path: &str, origins: &Origins) -> Headed {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&bytes[..bytes.len().min(HEAD_BYTES_MAX)]) {
            Ok(httparse::Status::Complete(len)) => match granted(&request, path, origins) {
                Ok(upgrade) => Headed::Upgrade(upgrade, len),
                Err(refusal) => Headed::Refused(refusal),
            },
            Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => Headed::Incomplete,
            Ok(httparse::Status::Partial) => {
                Headed::Refused(Refusal::Malformed("the request's head is longer than 8 KiB"))
            }
            Err(httparse::Error::TooManyHeaders) => {
                Headed::Refused(Refusal::Malformed("the request has more than 64 headers"))
            }
            Err(_) => Headed::Refused(Refusal::Malformed("this is no HTTP/1.1 request")),
        }
    }
}

fn granted(request: &httparse::Request<'_, '_>, path: &str, origins: &Origins) -> Result<Upgrade, Refusal> {
    let all = |name: &'static str| {
        let named = request
            .headers
            .iter()
            .filter(move |one| one.name.eq_ignore_ascii_case(name));
        named.map(|one| std::str::from_utf8(one.value).unwrap_or("\u{fffd}").trim())
    };
    // A header that must come once is refused if it comes twice: a proxy may have judged by the other one.
    let one = |name: &'static str| {
        let mut values = all(name);
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            _ => Err(Refusal::Malformed("a header that must come once comes twice")),
        }
    };
    let lists = |name: &'static str, word: &str| {
        let mut words = all(name).flat_map(|value| value.split(','));
        words.any(|one| one.trim().eq_ignore_ascii_case(word))
    };
    if request.version != Some(1) {
        return Err(Refusal::Malformed("this is no HTTP/1.1 request"));
    }
    let target = request.path.unwrap_or_default();
    let (asked, query) = target.split_once('?').unwrap_or((target, ""));
    if asked != path {
        return Err(Refusal::Path);
    }
    if request.method != Some("GET") {
        return Err(Refusal::NoUpgrade("the method is not GET"));
    }
    if one("content-length")?.is_some_and(|len| len != "0") || all("transfer-encoding").next().is_some() {
        return Err(Refusal::Malformed("an upgrade request has no body"));
    }
    if !lists("upgrade", "websocket") || !lists("connection", "upgrade") {
        return Err(Refusal::NoUpgrade(
            "the headers Upgrade and Connection do not ask for it",
        ));
    }
    if one("sec-websocket-version")? != Some("13") {
        return Err(Refusal::Version);
    }
    let host = one("host")?.ok_or(Refusal::Malformed("the header Host is missing"))?;
    let key = one("sec-websocket-key")?.unwrap_or_default();
    if STANDARD.decode(key).map(|key| key.len()) != Ok(16) {
        return Err(Refusal::Malformed(
            "the header Sec-WebSocket-Key holds no 16 bytes of base64",
        ));
    }
    if let Some(origin) = one("origin")? {
        if !origins.allow(origin, host) {
            let shown = origin.chars().filter(|one| one.is_ascii_graphic()).take(200);
            return Err(Refusal::Origin(shown.collect()));
        }
    }
    // An empty list is tolerated: the SDK for Python sends one in JSON mode.
    let offered = all("sec-websocket-protocol").flat_map(|value| value.split(','));
    let subprotocol = offered
        .map(str::trim)
        .find_map(|one| [JSON, PROTOBUF].into_iter().find(|known| *known == one));
    let said = |pair: &str| query.split('&').any(|one| one == pair);
    let protobuf = subprotocol == Some(PROTOBUF) || said("cf_protocol=protobuf") || said("format=protobuf");
    Ok(Upgrade {
        encoding: if protobuf { Encoding::Protobuf } else { Encoding::Json },
        native_pings: said("cf_ws_frame_ping_pong=true"),
        accept: accept(key),
        subprotocol,
    })
}

/// The proof that the server understood (RFC 6455, 4.2.2).
fn accept(key: &str) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key.as_bytes());
    context.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(context.finish())
}
