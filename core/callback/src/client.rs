//! One call over HTTP: connects to a checked address, sends, reads a bounded part of the response, all before a
//! deadline.
//!
//! Owns: the pool of connections, TLS, headers, the meaning of a response. Must not know: queues and limits.

use std::error::Error;
use std::future::Future;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{HeaderValue, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::PrivateKeyDer;
use rustls::RootCertStore;
use tokio::time::{timeout_at, Instant};
use tower_service::Service;

use crate::guard::Guard;
use crate::{Call, Outcome};

/// Bytes of a response's body that are read.
const ANSWER_BYTES_MAX: usize = 4_096;

/// How long the body of a successful response is waited for, so that its connection can be reused.
const DRAIN: Duration = Duration::from_millis(500);

/// Longest time to make a connection: after it, the origin counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a call got no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not `http` or `https`, no host, or with a user name.
    BadUrl,
    /// The name does not resolve.
    Unresolved,
    /// All addresses of the name are refused: the call was not made.
    ForbiddenAddress,
    Connect,
    /// The certificate is invalid, or the server does not use TLS.
    Tls,
    /// The deadline passed.
    Timeout,
    /// The connection ended, or the response is not HTTP.
    Broken,
}

impl Failure {
    /// The name that programs see.
    pub fn name(self) -> &'static str {
        match self {
            Failure::BadUrl => "bad_url",
            Failure::Unresolved => "unresolved",
            Failure::ForbiddenAddress => "forbidden_address",
            Failure::Connect => "connect",
            Failure::Tls => "tls",
            Failure::Timeout => "timeout",
            Failure::Broken => "broken",
        }
    }
}

/// Certificates, for targets with `https`.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// Authorities besides Mozilla's list: certificates in DER.
    pub authorities: Vec<Vec<u8>>,
    /// Shown to a target that requests it.
    pub identity: Option<Identity>,
}

/// A client's certificate and its key, in DER.
#[derive(Clone)]
pub struct Identity {
    /// The client's own first, then those that lead to an authority.
    pub chain: Vec<Vec<u8>>,
    /// PKCS #8, PKCS #1 or SEC 1.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an identity of {} certificates", self.chain.len())
    }
}

/// A parsed destination.
pub(crate) struct Place {
    pub uri: Uri,
    /// Scheme, host and port.
    pub origin: String,
}

impl Place {
    pub fn parse(url: &str, guard: &Guard) -> Result<Place, Failure> {
        let uri: Uri = url.parse().map_err(|_| Failure::BadUrl)?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(Failure::BadUrl);
        };
        let port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return Err(Failure::BadUrl),
        };
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(Failure::BadUrl);
        }
        // IP addresses are connected to without resolution, so they are checked here.
        let host = authority.host();
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            if !guard.permits(address) {
                return Err(Failure::ForbiddenAddress);
            }
        }
        let origin = format!(
            "{scheme}://{}:{}",
            host.to_ascii_lowercase(),
            authority.port_u16().unwrap_or(port)
        );
        Ok(Place { uri, origin })
    }
}

/// Resolves names and leaves out refused addresses, so that only checked addresses are connected to.
#[derive(Clone)]
struct GuardedResolver(Arc<Guard>);

#[derive(Debug, thiserror::Error)]
enum ResolveError {
    #[error("name does not resolve: {0}")]
    Unresolved(std::io::Error),
    #[error("every address of the name is refused")]
    Forbidden,
}

impl Service<Name> for GuardedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = ResolveError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ResolveError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ResolveError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let guard = Arc::clone(&self.0);
        Box::pin(async move {
            let resolve = move || (name.as_str(), 0).to_socket_addrs();
            let found = tokio::task::spawn_blocking(resolve)
                .await
                .map_err(std::io::Error::other);
            let found = found.and_then(|found| found).map_err(ResolveError::Unresolved)?;
            let permitted: Vec<SocketAddr> = found.filter(|address| guard.permits(address.ip())).collect();
            match permitted.is_empty() {
                true => Err(ResolveError::Forbidden),
                false => Ok(permitted.into_iter()),
            }
        })
    }
}

type Connector = HttpsConnector<HttpConnector<GuardedResolver>>;

#[derive(Clone)]
pub(crate) struct Client {
    pool: Pool<Connector, Full<Bytes>>,
    agent: HeaderValue,
}

impl Client {
    /// `idle_max`: idle connections kept per target. As many as concurrent calls: with fewer, each burst would close
    /// and open connections.
    pub fn new(guard: Arc<Guard>, tls: &Tls, idle_max: usize) -> Result<Client, rustls::Error> {
        let mut store = RootCertStore::empty();
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        for certificate in &tls.authorities {
            store.add(certificate.clone().into())?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(store);
        let tls = match &tls.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = identity.chain.iter().cloned().map(Into::into).collect();
                let key = PrivateKeyDer::try_from(identity.key.clone());
                let key = key.map_err(|error| rustls::Error::General(error.to_owned()))?;
                builder.with_client_auth_cert(chain, key)?
            }
        };
        let mut http = HttpConnector::new_with_resolver(GuardedResolver(guard));
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(http);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_max_idle_per_host(idle_max)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .http1_max_headers(100)
            .http2_max_header_list_size(64 << 10)
            .build(connector);
        let agent = HeaderValue::from_static(concat!("muster/", env!("CARGO_PKG_VERSION")));
        Ok(Client { pool, agent })
    }

    /// Makes a call.
    pub async fn call(&self, uri: Uri, call: &Call) -> Outcome {
        let deadline = Instant::now() + call.timeout;
        let Some(request) = self.request(uri, call) else {
            return Outcome::Failed(Failure::BadUrl);
        };
        let response = match timeout_at(deadline, self.pool.request(request)).await {
            Err(_) => return Outcome::Failed(Failure::Timeout),
            Ok(Err(error)) => return Outcome::Failed(meaning(&error)),
            Ok(Ok(response)) => response,
        };
        let status = response.status();
        if status.is_success() {
            let mut body = Bytes::new();
            if call.keeps_answer {
                match timeout_at(deadline, read(response)).await {
                    Err(_) => return Outcome::Failed(Failure::Timeout),
                    Ok(read) => body = read,
                }
            } else if !response.body().is_end_stream() {
                // The status is the result. The body is read only to reuse the connection.
                let until = deadline.min(Instant::now() + DRAIN);
                let _ = timeout_at(until, read(response)).await;
            }
            return Outcome::Delivered {
                status: status.as_u16(),
                body,
            };
        }
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| pause(value, SystemTime::now(), call.pause_max));
        let until = deadline.min(Instant::now() + DRAIN);
        let body = timeout_at(until, read(response)).await.unwrap_or_default();
        Outcome::Refused {
            status: status.as_u16(),
            retry_after,
            body,
        }
    }

    fn request(&self, uri: Uri, call: &Call) -> Option<Request<Full<Bytes>>> {
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_secs());
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(uri)
            .header(USER_AGENT, &self.agent)
            .header(CONTENT_TYPE, call.content_type.as_str())
            // Sent also for an empty body, since servers wait for it and hyper leaves it out.
            .header(CONTENT_LENGTH, call.body.len())
            .header("webhook-id", call.id.as_str())
            .header("webhook-timestamp", time);
        if !call.secrets.0.is_empty() {
            request = request.header("webhook-signature", call.secrets.sign(&call.id, time, &call.body));
        }
        request.body(Full::new(call.body.clone())).ok()
    }
}

/// The beginning of a response's body. If it is longer, the connection is closed.
async fn read(response: Response<Incoming>) -> Bytes {
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            let room = ANSWER_BYTES_MAX - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() >= room {
                break;
            }
        }
    }
    bytes.freeze()
}

/// The value of `Retry-After`, seconds or a date; at most `max`.
fn pause(value: &HeaderValue, now: SystemTime, max: Duration) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let pause = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) if is_number => max, // more than 64 bits
        Err(_) => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .unwrap_or_default(),
    };
    Some(pause.min(max))
}

fn meaning(error: &hyper_util::client::legacy::Error) -> Failure {
    let mut source: Option<&(dyn Error + 'static)> = error.source();
    while let Some(cause) = source {
        match cause.downcast_ref::<ResolveError>() {
            Some(ResolveError::Forbidden) => return Failure::ForbiddenAddress,
            Some(ResolveError::Unresolved(_)) => return Failure::Unresolved,
            None => {}
        }
        if is_tls(cause) {
            return Failure::Tls;
        }
        source = cause.source();
    }
    match error.is_connect() {
        true => Failure::Connect,
        false => Failure::Broken,
    }
}

/// Whether the error is rustls's, or contains one in errors of I/O.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(|inner| is_tls(inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_a_host_that_may_be_called() {
        let guard = Guard::default();
        let target = |url: &str| Place::parse(url, &guard).map(|place| place.origin);
        assert_eq!(
            target("https://Shop.example/hook?a=1"),
            Ok("https://shop.example:443".to_owned())
        );
        assert_eq!(
            target("http://shop.example:8080/"),
            Ok("http://shop.example:8080".to_owned())
        );
        for url in [
            "",
            "/hook",
            "ftp://a.example/",
            "https://user@a.example/",
            "https:///x",
            "file:///etc/passwd",
        ] {
            assert_eq!(target(url), Err(Failure::BadUrl), "{url}");
        }
        for url in [
            "http://127.0.0.1/",
            "http://[::1]:80/",
            "http://169.254.169.254/latest",
            "http://[::ffff:10.0.0.1]/",
        ] {
            assert_eq!(target(url), Err(Failure::ForbiddenAddress), "{url}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_has_a_bound() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let max = Duration::from_secs(600);
        let pause = |text: &'static str| pause(&HeaderValue::from_static(text), now, max);
        assert_eq!(pause("120"), Some(Duration::from_secs(120)));
        assert_eq!(pause("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(pause("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(pause("99999999999"), Some(max));
        assert_eq!(pause("99999999999999999999999999"), Some(max));
        assert_eq!(pause("soon"), None);
        assert_eq!(pause("-1"), None);
    }
}
