//! Errors, ends of sessions and ends of subscriptions, by the numbers of the protocol.
//!
//! Owns: [`Failure`], [`Disconnect`], [`Unsubscribe`]. SDKs decide by the number if they come back.

/// The error of one command. SDKs retry a temporary one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    Internal,
    Unauthorized,
    UnknownChannel,
    PermissionDenied,
    MethodNotFound,
    AlreadySubscribed,
    LimitExceeded,
    BadRequest,
    NotAvailable,
    TokenExpired,
    Expired,
    TooManyRequests,
    UnrecoverablePosition,
    ConcurrentPagination,
    /// A system's own, from 400 on.
    Own {
        code: u32,
        message: &'static str,
        temporary: bool,
    },
}

impl Failure {
    /// A filter of a subscription is refused, for this reason.
    pub const fn filter(message: &'static str) -> Failure {
        Failure::Own {
            code: 401,
            message,
            temporary: false,
        }
    }

    /// Number, text, and whether to try again.
    pub fn parts(self) -> (u32, &'static str, bool) {
        match self {
            Failure::Internal => (100, "internal server error", true),
            Failure::Unauthorized => (101, "unauthorized", false),
            Failure::UnknownChannel => (102, "unknown channel", false),
            Failure::PermissionDenied => (103, "permission denied", false),
            Failure::MethodNotFound => (104, "method not found", false),
            Failure::AlreadySubscribed => (105, "already subscribed", false),
            Failure::LimitExceeded => (106, "limit exceeded", false),
            Failure::BadRequest => (107, "bad request", false),
            Failure::NotAvailable => (108, "not available", false),
            Failure::TokenExpired => (109, "token expired", false),
            Failure::Expired => (110, "expired", false),
            Failure::TooManyRequests => (111, "too many requests", true),
            Failure::UnrecoverablePosition => (112, "unrecoverable position", false),
            Failure::ConcurrentPagination => (113, "concurrent pagination", true),
            Failure::Own {
                code,
                message,
                temporary,
            } => (code, message, temporary),
        }
    }
}

/// The end of a session, as the code and reason of its close frame. From 3500 to 3999 and from 4500 on the client stays away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disconnect {
    pub code: u16,
    pub reason: &'static str,
}

impl Disconnect {
    pub const CLOSED: Disconnect = Disconnect::new(3000, "connection closed");
    pub const SHUTDOWN: Disconnect = Disconnect::new(3001, "shutdown");
    pub const SERVER_ERROR: Disconnect = Disconnect::new(3004, "internal server error");
    pub const EXPIRED: Disconnect = Disconnect::new(3005, "connection expired");
    pub const SUBSCRIPTION_EXPIRED: Disconnect = Disconnect::new(3006, "subscription expired");
    pub const SLOW: Disconnect = Disconnect::new(3008, "slow");
    pub const INSUFFICIENT_STATE: Disconnect = Disconnect::new(3010, "insufficient state");
    pub const FORCE_RECONNECT: Disconnect = Disconnect::new(3011, "force reconnect");
    pub const NO_PONG: Disconnect = Disconnect::new(3012, "no pong");
    pub const TOO_MANY_REQUESTS: Disconnect = Disconnect::new(3013, "too many requests");
    pub const STATE_INVALIDATED: Disconnect = Disconnect::new(3014, "state invalidated");
    pub const INVALID_TOKEN: Disconnect = Disconnect::new(3500, "invalid token");
    pub const BAD_REQUEST: Disconnect = Disconnect::new(3501, "bad request");
    pub const STALE: Disconnect = Disconnect::new(3502, "stale");
    pub const FORCE: Disconnect = Disconnect::new(3503, "force disconnect");
    pub const CONNECTION_LIMIT: Disconnect = Disconnect::new(3504, "connection limit");
    pub const CHANNEL_LIMIT: Disconnect = Disconnect::new(3505, "channel limit");
    pub const PERMISSION_DENIED: Disconnect = Disconnect::new(3507, "permission denied");
    pub const NOT_AVAILABLE: Disconnect = Disconnect::new(3508, "not available");
    /// A newer session of the same device has taken its place.
    pub const REPLACED: Disconnect = Disconnect::new(4501, "replaced");

    pub const fn new(code: u16, reason: &'static str) -> Disconnect {
        Disconnect { code, reason }
    }

    /// Whether SDKs connect again.
    pub fn returns(self) -> bool {
        !matches!(self.code, 3500..=3999 | 4500..=4999)
    }
}

/// The end of a subscription. From 2500 on the client subscribes again at once, without a back-off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsubscribe(pub u32);

impl Unsubscribe {
    pub const SERVER: Unsubscribe = Unsubscribe(2000);
    /// Messages were lost: the client asks what it can still have.
    pub const INSUFFICIENT: Unsubscribe = Unsubscribe(2500);
    pub const EXPIRED: Unsubscribe = Unsubscribe(2501);
    pub const STATE_INVALIDATED: Unsubscribe = Unsubscribe(2502);

    /// Whether SDKs subscribe again.
    pub fn returns(self) -> bool {
        self.0 >= 2500
    }
}
