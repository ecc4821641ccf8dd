//! Checks of commands: each ends once and in time, no member gets one twice, and each member present all along gets
//! every delivered one. Checks of queries: each member present all along is counted and, if nothing failed, no other.
//!
//! Knows no machine. A command's content is its index among all commands.

use std::collections::BTreeMap;

use muster_rooms::command::{Outcome, Page, Verdict, GRACE};
use muster_rooms::SETTLE;
use muster_transport::{Code, Micros};

use crate::plan::{MS, SECOND};

/// If a member's session ends within this time, its gateway may have lost it before the member noticed.
const UNNOTICED: Micros = 5 * SECOND;

/// After this time a sent leave has taken effect, whatever was lost on the way.
const LEFT: Micros = 3 * SECOND;

struct Command {
    client: usize,
    /// A query: it delivers nothing to members, and counts them.
    counts: bool,
    page: Option<Page>,
    room: usize,
    number: u64,
    sent_at: Micros,
    until: Micros,
    ended: Option<(Micros, Outcome)>,
    /// Its sender died before it got the outcome.
    forgotten: bool,
    receivers: Vec<usize>,
}

/// When a membership was in force, as far as the member knew.
struct Stay {
    client: usize,
    room: usize,
    asked_at: Micros,
    from: Vec<Micros>,
    ended: Vec<Micros>,
}

impl Stay {
    /// Whether it was certainly in force all the time.
    fn lasts(&self, since: Micros, until: Micros) -> bool {
        let from = self.from.iter().rev().find(|from| **from <= since);
        from.is_some_and(|from| {
            let during = *from..until + UNNOTICED;
            !self.ended.iter().any(|end| during.contains(end))
        })
    }

    /// Whether a gateway may have known it at some time.
    fn touches(&self, since: Micros, until: Micros) -> bool {
        let ended = self.ended.last().filter(|end| self.from.iter().all(|from| from <= end));
        let left = ended.is_some_and(|end| end + LEFT <= since);
        self.asked_at <= until && !left
    }
}

#[derive(Default)]
pub struct Commands {
    all: Vec<Command>,
    stays: BTreeMap<usize, Stay>,
    /// Periods in which a gateway stood still, or was cut off, for so long that its members do not count, or that a
    /// router or broker started meanwhile does not know them.
    blind: Vec<(Micros, Micros)>,
    pub delivered: u64,
    pub expired: u64,
    /// Number of queries that all gateways have answered.
    pub counted: u64,
    /// The longest time until a sender learned that its command was delivered.
    pub slowest: Micros,
}

impl Commands {
    /// Notes that a gateway stands still, or is cut off from a broker and from all routers that report some of its
    /// rooms to that broker.
    pub fn note_out(&mut self, now: Micros, pause: Micros) {
        if pause >= SETTLE {
            self.blind.push((now, now + pause + SETTLE));
        }
    }

    /// The content of the next command.
    pub fn content(&self) -> [u8; 8] {
        (self.all.len() as u64).to_le_bytes()
    }

    pub fn sent(&mut self, now: Micros, (client, counts): (usize, bool), room: usize, number: u64, lifetime: Micros) {
        self.all.push(Command {
            client,
            counts,
            page: None,
            room,
            number,
            sent_at: now,
            until: now + lifetime,
            ended: None,
            forgotten: false,
            receivers: Vec::new(),
        });
    }

    /// A client's process died.
    pub fn died(&mut self, now: Micros, client: usize) {
        let open = self
            .all
            .iter_mut()
            .filter(|command| command.client == client && command.ended.is_none());
        open.for_each(|command| command.forgotten = true);
        self.lost(now, client);
    }

    /// A client asks to be a member.
    pub fn asked(&mut self, now: Micros, membership: usize, client: usize, room: usize) {
        let stay = Stay {
            client,
            room,
            asked_at: now,
            from: Vec::new(),
            ended: Vec::new(),
        };
        self.stays.insert(membership, stay);
    }

    pub fn joined(&mut self, now: Micros, membership: usize) {
        if let Some(stay) = self.stays.get_mut(&membership) {
            stay.from.push(now);
        }
    }

    /// A client loses its session with its gateway.
    pub fn lost(&mut self, now: Micros, client: usize) {
        let stays = self.stays.values_mut().filter(|stay| stay.client == client);
        stays.for_each(|stay| stay.ended.push(now));
    }

    pub fn left(&mut self, now: Micros, membership: usize) {
        if let Some(stay) = self.stays.get_mut(&membership) {
            stay.ended.push(now);
        }
    }

    /// A member reads a command.
    pub fn received(
        &mut self,
        membership: usize,
        room: usize,
        sender: u64,
        number: u64,
        data: &[u8],
    ) -> Result<(), String> {
        let place = data.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
        let Some(command) = self.all.get_mut(place as usize) else {
            return Err(format!("a command that nobody sent: {data:?}"));
        };
        if (command.room, command.client as u64 + 1, command.number) != (room, sender, number) {
            return Err(format!("command {place} came as {number} of {sender} in room {room}"));
        }
        if command.receivers.contains(&membership) {
            return Err(format!("command {place} came twice to membership {membership}"));
        }
        command.receivers.push(membership);
        Ok(())
    }

    /// `stood`: the longest that the sender's process stands still.
    pub fn ended(
        &mut self,
        now: Micros,
        client: usize,
        number: u64,
        (outcome, page): (Outcome, Option<Page>),
        stood: Micros,
    ) -> Result<(), String> {
        let Some(command) = self
            .all
            .iter_mut()
            .find(|command| (command.client, command.number) == (client, number))
        else {
            return Err(format!(
                "client {client} got an outcome of a command that it did not send"
            ));
        };
        if command.ended.replace((now, outcome)).is_some() {
            return Err(format!("client {client} got an outcome of a command twice"));
        }
        command.page = page;
        let whole = matches!(outcome.verdict, Verdict::Delivered | Verdict::NoMember);
        self.counted += u64::from(command.counts && whole);
        self.delivered += u64::from(!command.counts && outcome.verdict == Verdict::Delivered);
        if outcome.verdict == Verdict::Delivered {
            self.slowest = self.slowest.max(now - command.sent_at);
        }
        self.expired += u64::from(outcome.verdict == Verdict::Expired);
        if now > command.until + 4 * GRACE + SECOND + stood {
            return Err(format!(
                "a command of client {client} ended {} us late",
                now - command.until
            ));
        }
        Ok(())
    }

    /// `mild`: no event may let a command expire. `prompt`: the time within which each command through several
    /// proxies ends. `reads`: whether a client reads at once.
    pub fn judge(&self, mild: bool, prompt: Option<Micros>, reads: impl Fn(usize) -> bool) -> Result<(), String> {
        for (place, command) in self.all.iter().enumerate().filter(|(_, command)| !command.forgotten) {
            let Some((ended_at, outcome)) = command.ended else {
                return Err(format!("command {place} never ended"));
            };
            let waited = ended_at - command.sent_at;
            if prompt.is_some_and(|prompt| waited > prompt) && !command.counts {
                return Err(format!("command {place} ended as {outcome:?} after {} ms", waited / MS));
            }
            match outcome.verdict {
                Verdict::Refused(Code::RateLimited) => continue,
                Verdict::Refused(code) => return Err(format!("command {place} was refused: {code:?}")),
                Verdict::Expired if mild => return Err(format!("command {place} expired without a reason")),
                Verdict::Expired => continue,
                Verdict::Delivered | Verdict::NoMember => {}
            }
            if self
                .blind
                .iter()
                .any(|(from, until)| command.sent_at < *until && *from < ended_at)
            {
                continue;
            }
            if command.counts {
                self.judge_count(mild, command, ended_at, outcome)?;
                continue;
            }
            for (membership, stay) in &self.stays {
                let stayed = stay.lasts(command.sent_at, ended_at);
                let owed = stayed && stay.room == command.room && reads(stay.client);
                if owed && !command.receivers.contains(membership) {
                    return Err(format!(
                        "command {place} ({outcome:?}, {} ms) did not come to client {}, membership {membership}",
                        (ended_at - command.sent_at) / MS,
                        stay.client
                    ));
                }
            }
            // A member that returns during the command's life gets it as well. Another broker may be asked after some
            // members got it and left.
            let stays = |membership: &usize| {
                let stay = self.stays.get(membership);
                stay.is_some_and(|stay| stay.lasts(command.sent_at, ended_at))
            };
            let (members, told) = (outcome.members as usize, &command.receivers);
            let sure = told.iter().filter(|membership| stays(membership)).count();
            if mild && !(sure..=told.len()).contains(&members) {
                return Err(format!(
                    "command {place} of client {} in room {} counts {members} members, not {sure} to {}: sent at {}, ended at {ended_at}",
                    command.client,
                    command.room,
                    told.len(),
                    command.sent_at
                ));
            }
        }
        Ok(())
    }

    /// The count is between the members present all along and those possibly present at some time; the same for
    /// users.
    fn judge_count(&self, mild: bool, command: &Command, ended_at: Micros, outcome: Outcome) -> Result<(), String> {
        let Some(page) = &command.page else {
            return Err(format!("a count of room {} came without users", command.room));
        };
        let stays = self.stays.values().filter(|stay| stay.room == command.room);
        let sure: Vec<_> = stays
            .clone()
            .filter(|stay| stay.lasts(command.sent_at, ended_at))
            .collect();
        let possible: Vec<_> = stays.filter(|stay| stay.touches(command.sent_at, ended_at)).collect();
        let members = outcome.members as usize;
        if members < sure.len() || mild && members > possible.len() {
            return Err(format!(
                "{members} members of room {}, not {} to {}, {} ms after they were asked for",
                command.room,
                sure.len(),
                possible.len(),
                (ended_at - command.sent_at) / MS
            ));
        }
        let user = |stay: &&Stay| stay.client as u64 + 1;
        let missing = sure.iter().map(user).find(|user| !page.users.contains(user));
        let named = |user: &u64| {
            possible
                .iter()
                .map(|stay| stay.client as u64 + 1)
                .any(|known| known == *user)
        };
        let strange = page.users.iter().copied().find(|user| mild && !named(user));
        match (page.more, missing, strange) {
            (false, None, None) => Ok(()),
            other => Err(format!(
                "room {}: more, missing, strange users: {other:?}",
                command.room
            )),
        }
    }
}
