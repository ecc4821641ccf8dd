//! Credentials that wait for a verdict, and the requests that wait with them.
//!
//! Owns the questions for the role, and the bounds over all sessions. Knows no session: the caller keeps a session's
//! waiting requests in its slot.

use std::collections::VecDeque;

use crate::machine::Micros;
use crate::wire::Code;

/// Maximum number of credentials that wait for the authenticator's verdict.
pub const QUESTIONS_MAX: usize = 256;
/// Maximum number of records of a session that wait for the verdict on its credential.
const WAITING_MAX: usize = 300;
/// Maximum bytes of such records over all sessions: 256 pending credentials with 32 KiB of joins each.
pub const WAITING_BYTES_MAX: usize = 8 << 20;
/// The share of these bytes reserved for each pending credential: half in total. Larger ones share the other half.
const WAITING_SHARE: usize = WAITING_BYTES_MAX / 2 / QUESTIONS_MAX;

/// Records that wait for the verdict on a credential.
#[derive(Default)]
pub(super) struct Waiting {
    records: Vec<Vec<u8>>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        self.records.iter().map(Vec::len).sum()
    }
}

/// A credential that waits for a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The session's id, for [`Sessions::answer`].
    pub id: u64,
    pub credential: Vec<u8>,
}

/// The user that a credential belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    pub user: u64,
    /// When the session ends; `None`: the credential has no end.
    pub until: Option<Micros>,
    /// The credential's number, by which it can be revoked; 0: none.
    pub token: u64,
}

impl From<u64> for Admission {
    /// A user without a time limit.
    fn from(user: u64) -> Self {
        Admission {
            user,
            until: None,
            token: 0,
        }
    }
}

/// What a verdict did to a session, given by its slot.
#[derive(Debug, PartialEq, Eq)]
pub enum Answered {
    /// It is open; these requests came before the verdict.
    Opened(u32, Vec<Vec<u8>>),
    /// It continues with another credential of its user.
    Renewed(u32),
}

/// Why a credential opens no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// It belongs to no user, or is no longer valid.
    Credential,
    /// Its user lacks the right to this action.
    Right,
    /// It cannot be judged yet: the key that may have signed it is being fetched.
    Later,
    /// Its user has the maximum number of sessions here.
    Sessions,
}

impl Denied {
    pub const ALL: [Denied; 4] = [Denied::Credential, Denied::Right, Denied::Later, Denied::Sessions];

    /// The code for the client.
    pub fn code(self) -> Code {
        match self {
            Denied::Credential => Code::BadCredential,
            Denied::Right => Code::NotAllowed,
            Denied::Later => Code::NotReady,
            Denied::Sessions => Code::RateLimited,
        }
    }
}

/// The pending credentials of all sessions.
#[derive(Default)]
pub(super) struct Asking {
    /// Questions that the role has not taken yet.
    questions: VecDeque<Question>,
    /// Number of credentials without a verdict.
    pending: usize,
    /// Bytes of all waiting requests.
    bytes: usize,
}

impl Asking {
    /// The next question for the role.
    pub(super) fn next(&mut self) -> Option<Question> {
        self.questions.pop_front()
    }

    /// Bytes of all waiting requests.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    /// Number of credentials without a verdict.
    #[cfg(test)]
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// A session shows a credential. `false`: too many wait.
    pub(super) fn ask(&mut self, id: u64, credential: &[u8]) -> bool {
        if self.pending >= QUESTIONS_MAX {
            return false;
        }
        self.pending += 1;
        let credential = credential.to_vec();
        self.questions.push_back(Question { id, credential });
        true
    }

    /// A credential has its verdict, or its session is over.
    pub(super) fn answered(&mut self) {
        self.pending -= 1;
    }

    /// Keeps a request of a session until the verdict. `false`: too many wait.
    pub(super) fn keep(&mut self, waiting: &mut Option<Box<Waiting>>, request: &[u8]) -> bool {
        let waiting = waiting.get_or_insert_default();
        let shared = self.bytes + request.len() <= WAITING_BYTES_MAX / 2;
        let fits = || request.len() + waiting.bytes() <= WAITING_SHARE;
        let keeps = waiting.records.len() < WAITING_MAX && (shared || fits());
        if keeps {
            self.bytes += request.len();
            waiting.records.push(request.to_vec());
        }
        keeps
    }

    /// Takes the waiting requests of a session.
    pub(super) fn release(&mut self, waiting: &mut Option<Box<Waiting>>) -> Vec<Vec<u8>> {
        let waiting = waiting.take().unwrap_or_default();
        self.bytes -= waiting.bytes();
        waiting.records
    }
}
