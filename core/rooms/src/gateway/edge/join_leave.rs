//! Joins and leaves: clients that ask for it hear which users come to a room and leave it, by any gateway or edge.
//!
//! Owns [`Watches`]: the rooms with such clients, the users that each had, and when each is asked for its users next. A room is
//! asked as the presence command asks it, so its brokers answer for all gateways and edges. The difference between two answers
//! is told: a user that leaves and is back before the next answer draws nothing, so a storm of reconnects costs nothing. No
//! message waits for any of it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use muster_edge::protocol::{ClientInfo, Push};
use muster_edge::Subscription;
use muster_transport::{KeyedState, Micros};

use super::questions::{Answers, ANSWER_MS};
use super::Edge;
use crate::command::{Ask, Outcome, Page, Verdict, SHARED_USER, USERS_MAX};
use crate::dispatch::{Asker, Dispatch};
use crate::gateway::members::Members;
use crate::name::{RoomKey, RoomName};
use crate::rights::Rights;

/// A room is asked for its users this often.
const EVERY: Micros = 1_000_000;
/// A room with too many users is asked this often whether it has fewer by now.
const LARGE_EVERY: Micros = 10_000_000;
/// Rooms that are asked a second at most; with more rooms each is asked less often.
const ASKED_A_SECOND: usize = 1_000;
/// Rooms that are asked in one turn at most.
const ASKED_A_TURN: usize = 64;

/// A subscription whose client hears joins and leaves.
struct Listener {
    session: u64,
    slot: u32,
    subscription: Subscription,
    since: Micros,
    /// The users that it was told; `None`: its room was too large, or has not answered yet.
    told: Option<Arc<[u64]>>,
}

/// One room.
struct Watch {
    key: RoomKey,
    due: Micros,
    asked_at: Micros,
    users: Option<Arc<[u64]>>,
    listeners: Vec<Listener>,
}

/// All rooms whose joins and leaves are told.
pub(super) struct Watches {
    rooms: HashMap<u64, Watch, KeyedState>,
    due: BTreeSet<(Micros, u64)>,
    /// Users of a room above which nothing is told; 0: never.
    users_max: usize,
}

impl Watches {
    pub(super) fn new(hash: KeyedState) -> Watches {
        Watches {
            rooms: HashMap::with_hasher(hash),
            due: BTreeSet::new(),
            users_max: USERS_MAX,
        }
    }

    pub(super) fn deadline(&self) -> Option<Micros> {
        self.due.first().map(|(at, _)| *at)
    }

    fn plan(&mut self, id: u64, at: Micros) {
        if let Some(watch) = self.rooms.get_mut(&id) {
            self.due.remove(&(watch.due, id));
            watch.due = at;
            self.due.insert((at, id));
        }
    }

    fn forget(&mut self, id: u64) {
        if let Some(watch) = self.rooms.remove(&id) {
            self.due.remove(&(watch.due, id));
        }
    }

    /// The time between two questions to one room.
    fn every(&self) -> Micros {
        EVERY * self.rooms.len().div_ceil(ASKED_A_SECOND).max(1) as Micros
    }
}

/// A room's user, as presence and joins name it.
pub(super) fn member_names(user: u64) -> (String, String) {
    (user.to_string(), format!("u{user}"))
}

/// Users of the second list, in order, that the first has not.
fn added<'a>(before: &'a [u64], after: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
    let is_new = |user: &u64| before.binary_search(user).is_err();
    after.iter().copied().filter(is_new)
}

impl Edge {
    /// Joins and leaves are told in rooms with at most this many users, a page of members at most; 0: in none.
    pub fn set_join_leave_max(&mut self, users: usize) {
        self.sessions.watches.users_max = users.min(USERS_MAX);
    }

    /// Rooms whose joins and leaves are told to clients here.
    pub fn watches_len(&self) -> usize {
        self.sessions.watches.rooms.len()
    }

    /// A client wants to hear joins and leaves of a room that it has just subscribed to.
    pub(super) fn watch(&mut self, now: Micros, slot: u32, at: u32, subscription: Subscription) {
        let Some((room, session)) = self.rooms.get(at).zip(self.sessions.session_of(slot)) else {
            return;
        };
        let Ok(name) = RoomName::parse(&room.name) else { return };
        let key = self.rules.key_of(&name);
        if self.sessions.watches.users_max == 0 || !self.may_watch(slot, &key, &name) {
            return;
        }
        let watches = &mut self.sessions.watches;
        let watch = watches.rooms.entry(key.id).or_insert_with(|| {
            watches.due.insert((now, key.id));
            Watch {
                key,
                due: now,
                asked_at: 0,
                users: None,
                listeners: Vec::new(),
            }
        });
        watch.listeners.push(Listener {
            session,
            slot,
            subscription,
            since: now,
            told: watch.users.clone(),
        });
    }

    fn may_watch(&self, slot: u32, key: &RoomKey, name: &RoomName<'_>) -> bool {
        let Some(conn) = self.sessions.live(slot) else {
            return false;
        };
        let granted = conn.client.grant.of(name);
        self.sessions.rights(slot, key, granted).has(Rights::MEMBERS)
    }

    /// Asks rooms whose time has come for their users.
    pub(super) fn ask_watched(&mut self, now: Micros) {
        for _ in 0..ASKED_A_TURN {
            let Some((_, id)) = self.sessions.watches.due.first().copied().filter(|(at, _)| *at <= now) else {
                return;
            };
            self.drop_listeners(id);
            let every = self.sessions.watches.every();
            let Some(watch) = self.sessions.watches.rooms.get_mut(&id) else {
                continue;
            };
            watch.asked_at = now;
            let key = watch.key;
            // Comes sooner if the answer is late; an answer sets it as well.
            self.sessions
                .watches
                .plan(id, now + every.max(Micros::from(ANSWER_MS) * 1_000));
            let number = self.node.secret_u64();
            self.sessions.questions.note(number, 0, Answers::Watch(id, now));
            let asker = Asker {
                session: id,
                user: SHARED_USER,
                room: Ok((key, Rights::MEMBERS)),
            };
            self.dispatch(now, &asker, number, ANSWER_MS, Ask::Count { from: Some(0) });
        }
    }

    /// Forgets clients of a room that hear no more, and the room with the last of them.
    fn drop_listeners(&mut self, id: u64) {
        let Some(at) = self.rooms.find(id) else {
            return self.sessions.watches.forget(id);
        };
        let Some(mut watch) = self.sessions.watches.rooms.remove(&id) else {
            return;
        };
        let name = self.rooms.get(at).map(|room| room.name.clone());
        let name = name.as_deref().and_then(|name| RoomName::parse(name).ok());
        let key = watch.key;
        watch.listeners.retain(|listener| {
            let conn = self.sessions.live(listener.slot);
            let hears = conn.is_some_and(|conn| {
                let subscribed = |sub: &super::Sub| sub.room == at && sub.subscription == listener.subscription;
                conn.session() == listener.session && conn.subs.iter().any(subscribed)
            });
            hears
                && name
                    .as_ref()
                    .is_some_and(|name| self.may_watch(listener.slot, &key, name))
        });
        let (due, empty) = (watch.due, watch.listeners.is_empty());
        match empty {
            true => drop(self.sessions.watches.due.remove(&(due, id))),
            false => drop(self.sessions.watches.rooms.insert(id, watch)),
        }
    }

    /// A room's users, as its brokers know them.
    pub(super) fn watch_answered(
        &mut self,
        now: Micros,
        (id, asked_at): (u64, Micros),
        outcome: &Outcome,
        page: &Page,
    ) {
        self.drop_listeners(id);
        let watches = &mut self.sessions.watches;
        let (every, users_max) = (watches.every(), watches.users_max);
        let Some(mut watch) = watches
            .rooms
            .get_mut(&id)
            .map(|watch| std::mem::take(&mut watch.listeners))
        else {
            return;
        };
        let known = matches!(outcome.verdict, Verdict::Delivered | Verdict::NoMember);
        let large = page.more || page.users.len() > users_max;
        // An answer without a client that was there when the question left is no whole one: a broker has just begun.
        let whole = watch
            .iter()
            .filter(|listener| listener.since < asked_at)
            .all(|listener| {
                let user = self.sessions.user_of(listener.slot);
                user.is_none_or(|user| user == SHARED_USER || page.users.binary_search(&user).is_ok())
            });
        let mut again = asked_at + every;
        if known && large {
            again = asked_at + every.max(LARGE_EVERY);
            self.set_users(id, None);
            watch.iter_mut().for_each(|listener| listener.told = None);
        } else if known && whole {
            let users = self.set_users(id, Some(&page.users));
            for listener in &mut watch {
                self.tell_difference(now, id, listener, users.as_ref());
            }
        }
        if let Some(known) = self.sessions.watches.rooms.get_mut(&id) {
            known.listeners = watch;
        }
        self.sessions.watches.plan(id, again.max(now));
    }

    /// Keeps a room's users; the same list for all that are told it.
    fn set_users(&mut self, id: u64, users: Option<&[u64]>) -> Option<Arc<[u64]>> {
        let watch = self.sessions.watches.rooms.get_mut(&id)?;
        if watch.users.as_deref() != users {
            watch.users = users.map(Arc::from);
        }
        watch.users.clone()
    }

    /// Tells a client who has come and gone since it was told last. One whose socket is full hears it all at a later time.
    fn tell_difference(&mut self, now: Micros, id: u64, listener: &mut Listener, users: Option<&Arc<[u64]>>) {
        let (Some(users), Some(at)) = (users, self.rooms.find(id)) else {
            return;
        };
        let Some(room) = self.rooms.get(at) else {
            return;
        };
        let slot = listener.slot;
        let Some(conn) = self.sessions.conns.get_mut(slot) else {
            return;
        };
        if conn.blocked.is_some() || conn.connection.is_full() {
            return;
        }
        let own = conn.user;
        // At first all are known from presence but the client itself.
        let before = listener.told.take().unwrap_or_else(|| {
            let others: Vec<u64> = users.iter().copied().filter(|user| *user != own).collect();
            others.into()
        });
        listener.told = Some(users.clone());
        if Arc::ptr_eq(&before, users) {
            return;
        }
        let bare = conn.subs.iter().any(|sub| sub.room == at && sub.bare);
        let name = if bare {
            super::frames::bare(&room.name)
        } else {
            &room.name
        };
        let Some(session) = conn.connection.session() else {
            return;
        };
        let mut told = 0;
        let changes = added(&before, users).map(|user| (user, true));
        for (user, joins) in changes.chain(added(users, &before).map(|user| (user, false))) {
            let (user, client) = member_names(user);
            let info = ClientInfo {
                user: user.into(),
                client: client.into(),
                ..ClientInfo::default()
            };
            match joins {
                true => session.push(name, &Push::Join(&info)),
                false => session.push(name, &Push::Leave(&info)),
            }
            told += 1;
        }
        self.sessions.counters.joins_leaves_told += told;
        self.sessions.settle(now, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_those_that_one_list_has_alone() {
        assert_eq!(added(&[1, 3, 5], &[1, 2, 5, 6]).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(added(&[1, 2, 5, 6], &[1, 3, 5]).collect::<Vec<_>>(), [3]);
        assert_eq!(added(&[], &[]).count(), 0);
    }
}
