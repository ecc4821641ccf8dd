//! TLS of streams: the configuration out of PEM, and a session of it.
//!
//! Owns: [`tls_config`], [`Tls`]. Must not know: which stream it is.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{InvalidMessage, ServerConfig, ServerConnection};

use crate::limits::TLS_BUFFER_BYTES;
use crate::syscalls;

/// Why there is no TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsError {
    Certificates(String),
    Key(String),
    /// They do not belong together, or cannot be used.
    Pair(String),
}

impl std::fmt::Display for TlsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TlsError::Certificates(why) => write!(f, "the file holds no certificates in PEM: {why}"),
            TlsError::Key(why) => write!(f, "the file holds no private key in PEM: {why}"),
            TlsError::Pair(why) => write!(f, "certificates and private key cannot be used: {why}"),
        }
    }
}

impl std::error::Error for TlsError {}

/// The configuration for these certificates, the server's own first, and its private key, both in PEM.
pub fn tls_config(certificates: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = CertificateDer::pem_slice_iter(certificates)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Certificates(error.to_string()))?;
    if chain.is_empty() {
        return Err(TlsError::Certificates("it has none".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Key(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| TlsError::Pair(error.to_string()))?;
    // A WebSocket's upgrade needs HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// A socket for the library's reading and writing.
struct Wire<'a>(BorrowedFd<'a>);

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        syscalls::receive(self.0, buffer)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        syscalls::send(self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        syscalls::send(self.0, &parts[..parts.len().min(crate::limits::VECTORS_MAX)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One stream's TLS.
pub(crate) struct Tls {
    session: ServerConnection,
    done: bool,
}

impl Tls {
    pub fn new(config: Arc<ServerConfig>) -> Result<Tls, rustls::Error> {
        let mut session = ServerConnection::new(config)?;
        session.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        Ok(Tls { session, done: false })
    }

    /// Takes encrypted bytes off the socket. False: the peer sends no more.
    pub fn fill(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        if self.session.read_tls(&mut Wire(socket))? == 0 {
            return Ok(false);
        }
        let taken = self.session.process_new_packets();
        if let Err(error) = taken {
            // The alert tells the peer why. One that does not speak TLS would take it for an answer.
            if !matches!(error, rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) {
                let _ = self.flush(socket);
            }
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(true)
    }

    /// Whether the handshake has ended since this was last asked.
    pub fn has_begun(&mut self) -> bool {
        !self.done && {
            self.done = !self.session.is_handshaking();
            self.done
        }
    }

    /// Plain bytes that came. `WouldBlock`: none are left for now; `Ok(0)`: the peer has said that there are no more.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.session.reader().read(buffer)
    }

    /// Takes plain bytes, as many as its buffer has room for.
    pub fn write(&mut self, parts: &[IoSlice<'_>]) -> usize {
        self.session.writer().write_vectored(parts).unwrap_or(0)
    }

    pub fn close(&mut self) {
        self.session.send_close_notify();
    }

    /// Sends encrypted bytes. True: all of them.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<(bool, usize)> {
        let mut sent = 0;
        while self.session.wants_write() {
            match self.session.write_tls(&mut Wire(socket)) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((false, sent)),
                Err(error) => return Err(error),
            }
        }
        Ok((true, sent))
    }
}
