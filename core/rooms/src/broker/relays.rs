//! Gateways that pass a busy room on to others, so that a broker sends few copies of it.
//!
//! A room on many gateways gets a *tree* of two levels: about the square root of its gateways, the *relays*, get it from the
//! broker, and each passes it on to about as many others, its *children*. Progress, heads and repairs stay between each
//! gateway and the broker. So a relay only saves datagrams, and a lost one loses nothing that a repair does not find.
//!
//! Owns: who is in a tree, and who is served by the broker again. Must not know: frames of messages (`fanout`).

use std::collections::{BTreeMap, BTreeSet};

use muster_transport::{weight, Addr, Micros};

use super::Broker;
use crate::role;
use crate::wire::record::Record;

/// Copies of a room's messages a second, for all its gateways together, from which on relays pass it on.
pub const BUSY: u64 = 1_000;
/// How often busy rooms with many gateways are looked at.
pub const LOOK_EVERY: Micros = 50_000;
/// The time over which copies are counted, and the interval at which a tree is planned again.
pub const PLAN_EVERY: Micros = 1_000_000;
/// A room without messages for this long needs no tree.
pub const TREE_IDLE: Micros = 60_000_000;
/// A child is behind if it has not passed on a message for this long and two round trips: its report waits for 60 ms.
const BEHIND: Micros = 150_000;
/// Shortest time between two heads for a child that is behind.
const HEAD_EVERY: Micros = 200_000;
/// A child that was behind its relay stays with the broker for this long, and one whose relay did not answer for the second.
const REST: Micros = 5_000_000;
const REST_UNANSWERED: Micros = 30_000_000;
/// A child that has not got its relay within this time stays with the broker.
const ANSWER_WITHIN: Micros = 3_000_000;

/// A gateway that is to get the room by another one.
#[derive(Clone, Copy, Debug)]
struct Child {
    relay: u32,
    /// It gets the room by its relay; until then by the broker as well.
    taken: bool,
    asked_at: Micros,
    /// When it was last told the room's head because it was behind.
    told_at: Micros,
}

/// The relays of a room, and the children of each.
#[derive(Debug, Default)]
pub struct Tree {
    /// Gateways that get the room from the broker, by number.
    direct: Vec<u32>,
    relays: BTreeMap<u32, BTreeSet<u32>>,
    children: BTreeMap<u32, Child>,
    /// Gateways that get no relay before a time.
    resting: BTreeMap<u32, Micros>,
    planned_at: Option<Micros>,
    withholds: Option<(Micros, bool)>,
}

impl Tree {
    fn new(gateways: impl Iterator<Item = u32>) -> Self {
        Tree {
            direct: gateways.collect(),
            ..Tree::default()
        }
    }

    /// The gateways that get the room from the broker.
    pub fn direct(&self) -> &[u32] {
        &self.direct
    }

    /// Whether a gateway gets the room by another one.
    pub fn is_relayed(&self, gateway: u32) -> bool {
        self.children.get(&gateway).is_some_and(|child| child.taken)
    }

    /// One more gateway wants the room: it gets it from the broker.
    pub fn add(&mut self, gateway: u32) {
        if let Err(place) = self.direct.binary_search(&gateway) {
            self.direct.insert(place, gateway);
        }
        self.planned_at = None;
    }

    /// What publishers were told within the last `within`: whether they must wait.
    pub fn withholds(&self, now: Micros, within: Micros) -> Option<bool> {
        let (at, withholds) = self.withholds?;
        (now < at + within).then_some(withholds)
    }

    pub fn note_withholds(&mut self, now: Micros, withholds: bool) {
        self.withholds = Some((now, withholds));
    }

    /// A child gets the room by its relay from now on. `false`: it is to get it by another way.
    fn take(&mut self, gateway: u32, relay: u32) -> bool {
        let Some(child) = self.children.get_mut(&gateway).filter(|child| child.relay == relay) else {
            return false;
        };
        child.taken = true;
        if let Ok(place) = self.direct.binary_search(&gateway) {
            self.direct.remove(place);
        }
        true
    }

    /// A child has no relay any more. Whether it got the room by that; `None`: it was no child.
    fn release(&mut self, gateway: u32) -> Option<bool> {
        let child = self.children.remove(&gateway)?;
        if let Some(children) = self.relays.get_mut(&child.relay) {
            children.remove(&gateway);
        }
        self.add(gateway);
        Some(child.taken)
    }

    /// A gateway passes nothing on any more: its children.
    fn dismiss(&mut self, relay: u32) -> BTreeSet<u32> {
        self.planned_at = None;
        self.relays.remove(&relay).unwrap_or_default()
    }

    fn forget(&mut self, gateway: u32) {
        self.release(gateway);
        self.resting.remove(&gateway);
        if let Ok(place) = self.direct.binary_search(&gateway) {
            self.direct.remove(place);
        }
    }

    /// Makes a gateway a relay.
    fn appoint(&mut self, gateway: u32) {
        self.relays.entry(gateway).or_default();
    }

    /// The tree of one relay and one child that gets the room by it.
    #[cfg(test)]
    pub fn of(relay: u32, child: u32) -> Self {
        let mut tree = Tree::new([relay, child].into_iter());
        tree.assign(0, child, relay);
        tree.take(child, relay);
        tree
    }

    fn assign(&mut self, now: Micros, gateway: u32, relay: u32) {
        let child = Child {
            relay,
            taken: false,
            asked_at: now,
            told_at: 0,
        };
        self.children.insert(gateway, child);
        self.relays.entry(relay).or_default().insert(gateway);
    }
}

/// A room with many gateways and messages.
struct Watch {
    since: Micros,
    /// The next offset at that time.
    from: u64,
}

/// The broker's trees.
#[derive(Default)]
pub(super) struct Relays {
    /// A room on more gateways than this may have a tree; 0: none may.
    above: usize,
    /// Rooms that are looked at.
    watched: BTreeMap<u32, Watch>,
    /// Rooms with a tree.
    trees: BTreeSet<u32>,
    look_at: Option<Micros>,
}

impl Relays {
    pub fn new(above: usize) -> Self {
        Relays {
            above,
            ..Relays::default()
        }
    }

    pub fn deadline(&self) -> Option<Micros> {
        self.look_at
    }

    /// A room with this many gateways has new messages, from offset `from` on.
    pub fn note(&mut self, now: Micros, at: u32, gateways: usize, from: u64) {
        if self.above == 0 || gateways <= self.above && !self.trees.contains(&at) {
            return;
        }
        self.watched.entry(at).or_insert(Watch { since: now, from });
        self.look_at.get_or_insert(now + LOOK_EVERY);
    }

    /// A room is gone.
    pub fn forget(&mut self, at: u32) {
        self.watched.remove(&at);
        self.trees.remove(&at);
    }
}

impl Broker {
    /// Looks at busy rooms with many gateways.
    pub(super) fn look_at_relays(&mut self, now: Micros) {
        if self.relays.look_at.is_none_or(|at| now < at) {
            return;
        }
        let above = self.relays.above;
        let rooms: Vec<u32> = self.relays.watched.keys().copied().collect();
        for at in rooms {
            let room = self.rooms.get(at);
            let (Some(watch), Some(room)) = (self.relays.watched.get_mut(&at), room) else {
                self.relays.watched.remove(&at);
                continue;
            };
            let next = room.ring.next();
            let (took, numbered) = (now.saturating_sub(watch.since), next.saturating_sub(watch.from));
            let copies = numbered.saturating_mul(room.gateways.len() as u64) * 1_000_000 / took.max(1);
            let (begins, ends) = (
                copies >= BUSY && room.gateways.len() > above && !room.ended,
                numbered == 0,
            );
            let (has_tree, over) = (room.tree.is_some(), took >= PLAN_EVERY);
            if over {
                (watch.since, watch.from) = (now, next);
            }
            let behind = has_tree && self.review_tree(now, at);
            if !has_tree && over && begins {
                self.build_tree(now, at);
            }
            if over && ends && !behind {
                self.relays.watched.remove(&at);
            }
        }
        self.relays.look_at = (!self.relays.watched.is_empty()).then_some(now + LOOK_EVERY);
    }

    fn build_tree(&mut self, now: Micros, at: u32) {
        if let Some(room) = self.rooms.get_mut(at) {
            room.tree = Some(Box::new(Tree::new(room.gateways.iter().map(|cursor| cursor.gateway))));
            self.relays.trees.insert(at);
            self.plan_tree(now, at);
        }
    }

    /// Serves children again that are behind, as those of a silent relay are. Whether there were any.
    fn review_tree(&mut self, now: Micros, at: u32) -> bool {
        let Broker {
            rooms,
            gateways,
            links,
            arena,
            ..
        } = self;
        let Some(room) = rooms.get_mut(at) else {
            return false;
        };
        let Some(tree) = room.tree.as_deref() else { return false };
        let (mut behind, mut taken) = (Vec::new(), 0);
        for (gateway, child) in tree.children.iter().filter(|(_, child)| child.taken) {
            taken += 1;
            let Ok(place) = room.place(*gateway) else { continue };
            let consumed = room.gateways[place].consumed;
            if consumed >= room.ring.next() {
                continue;
            }
            let link = gateways.get(gateway).and_then(|peer| links.table.get(peer.link));
            let rtt = link.map_or(0, |link| link.conn.flow.rtt());
            let age = room.ring.age(arena, now, consumed);
            if age.is_none_or(|age| age > BEHIND + 2 * rtt) {
                behind.push((*gateway, *child));
            }
        }
        // If most are behind, they, or this broker, are busy: serving all of them would make it worse.
        let (some, most) = (!behind.is_empty(), 2 * behind.len() > taken);
        for (gateway, child) in behind {
            if !most {
                self.serve_again(now, at, gateway, REST);
            } else if now >= child.told_at + HEAD_EVERY {
                let tree = self.rooms.get_mut(at).and_then(|room| room.tree.as_mut());
                if let Some(child) = tree.and_then(|tree| tree.children.get_mut(&gateway)) {
                    child.told_at = now;
                }
                self.head_due(at, gateway);
            }
        }
        self.plan_tree(now, at);
        some
    }

    /// Appoints relays and gives children to them, and changes as little as possible.
    fn plan_tree(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let few = room.gateways.len() <= self.relays.above * 3 / 4;
        let Some(tree) = room.tree.as_deref_mut() else { return };
        if few {
            return self.dissolve_tree(now, at);
        }
        if tree.planned_at.is_some_and(|planned| now < planned + PLAN_EVERY) {
            return;
        }
        tree.planned_at = Some(now);
        tree.resting.retain(|_, until| now < *until);
        let able = |gateway: &u32| self.gateways.get(gateway).is_some_and(|peer| peer.relays);
        let wanted = (room.gateways.len() as f64).sqrt().ceil() as usize;
        let (stay, mut dismissed): (Vec<u32>, Vec<u32>) = tree.relays.keys().partition(|relay| able(relay));
        // Spare relays stay until they are too many, so that gateways that go do not move the children of others.
        if stay.len() > 2 * wanted {
            dismissed.extend(stay.iter().min_by_key(|relay| (tree.relays[relay].len(), **relay)));
        }
        let unanswered = |child: &Child| !child.taken && now >= child.asked_at + ANSWER_WITHIN;
        let unanswered = tree.children.iter().filter(|(_, child)| unanswered(child));
        let unanswered: Vec<u32> = unanswered.map(|(gateway, _)| *gateway).collect();
        let mut promoted: Vec<u32> = room.gateways.iter().map(|cursor| cursor.gateway).collect();
        promoted.retain(|gateway| !tree.relays.contains_key(gateway) && able(gateway));
        // Children only where no other gateway is left.
        let seed = self.node.me.node.into();
        promoted.sort_by_key(|gateway| (tree.children.contains_key(gateway), weight(seed, *gateway)));
        promoted.truncate(wanted.saturating_sub(stay.len()));
        let orphans: Vec<u32> = dismissed.into_iter().flat_map(|relay| tree.dismiss(relay)).collect();
        promoted.iter().for_each(|gateway| tree.appoint(*gateway));
        orphans
            .into_iter()
            .chain(promoted)
            .for_each(|gateway| self.serve_again(now, at, gateway, 0));
        unanswered
            .into_iter()
            .for_each(|gateway| self.serve_again(now, at, gateway, REST_UNANSWERED));
        self.assign_children(now, at);
    }

    /// Gives gateways without a relay one of those that have a place, and always the same if that has one.
    fn assign_children(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let (id, count) = (room.id, room.gateways.len());
        let Some(tree) = room.tree.as_deref_mut().filter(|tree| !tree.relays.is_empty()) else {
            return;
        };
        let places = count.div_ceil(tree.relays.len()) * 5 / 4;
        let able = |gateway: &u32| self.gateways.get(gateway).is_some_and(|peer| peer.relays);
        let mut told = Vec::new();
        for gateway in room.gateways.iter().map(|cursor| cursor.gateway) {
            let has_part = tree.relays.contains_key(&gateway) || tree.children.contains_key(&gateway);
            if has_part || tree.resting.contains_key(&gateway) || !able(&gateway) {
                continue;
            }
            let open = tree.relays.iter().filter(|(_, children)| children.len() < places);
            let best = open.max_by_key(|(relay, _)| weight(gateway.into(), **relay));
            if let Some(relay) = best.map(|(relay, _)| *relay) {
                tree.assign(now, gateway, relay);
                told.push((gateway, relay));
            }
        }
        for (gateway, relay) in told {
            self.tell_relay(now, id, gateway, Some(relay));
        }
    }

    /// Tells a gateway by whom it is to get a room.
    fn tell_relay(&mut self, now: Micros, room: u64, gateway: u32, relay: Option<u32>) {
        let Some(slot) = self.gateways.get(&gateway).map(|peer| peer.link) else {
            return;
        };
        let way = relay.and_then(|relay| {
            let link = self.links.table.get(self.gateways.get(&relay)?.link)?;
            let placed = self.placement.node(relay).map(|node| node.addr);
            let addr = placed.filter(|addr| !addr.is_unspecified() && addr.port > 0);
            Some((relay, link.data.peer.role.code(), addr.unwrap_or(link.conn.addr)))
        });
        let (node, role, addr) = way.unwrap_or((0, role::GATEWAY.code(), Addr::default()));
        self.links
            .record(now, slot, &Record::RelayedBy { room, node, role, addr });
    }

    /// The broker sends a room to a child itself again, for this long at least. It asks for what it lacks, as it gets the head.
    fn serve_again(&mut self, now: Micros, at: u32, gateway: u32, rest: Micros) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let (id, next) = (room.id, room.ring.next());
        let Some(tree) = room.tree.as_deref_mut() else { return };
        let Some(taken) = tree.release(gateway) else { return };
        if rest > 0 {
            tree.resting.insert(gateway, now + rest);
        }
        if taken {
            self.counters.relays_ended += 1;
            if let Some(cursor) = room.cursor(gateway) {
                cursor.next = next;
                self.head_due(at, gateway);
            }
        }
        self.tell_relay(now, id, gateway, None);
    }

    /// Takes a gateway's word that it gets a room by another one, or not any more.
    pub(super) fn relay_taken(&mut self, now: Micros, gateway: u32, room: u64, node: u32, on: bool) {
        let at = self.rooms.find(room);
        let tree = at.and_then(|at| self.rooms.get_mut(at)?.tree.as_deref_mut());
        let (Some(at), Some(tree)) = (at, tree) else {
            if on {
                self.tell_relay(now, room, gateway, None);
            }
            return;
        };
        match tree.children.get(&gateway).map(|child| (child.relay, child.taken)) {
            Some((relay, taken)) if relay == node && on => {
                tree.take(gateway, node);
                self.counters.relays_begun += u64::from(!taken);
            }
            Some((relay, _)) if relay == node => self.serve_again(now, at, gateway, REST),
            None if on => self.tell_relay(now, room, gateway, None),
            _ => {}
        }
    }

    /// A gateway's link is lost, or new: it passes nothing on, and is to get rooms from the broker.
    pub(super) fn relay_lost(&mut self, now: Micros, gateway: u32) {
        for at in self.relays.trees.clone() {
            let room = self.rooms.get_mut(at);
            let Some(tree) = room.and_then(|room| room.tree.as_deref_mut()) else {
                continue;
            };
            let orphans = tree.dismiss(gateway);
            self.serve_again(now, at, gateway, 0);
            orphans
                .into_iter()
                .for_each(|child| self.serve_again(now, at, child, 0));
        }
    }

    /// Another gateway may pass rooms on.
    pub(super) fn relay_found(&mut self, gateway: u32) {
        if let Some(peer) = self.gateways.get_mut(&gateway) {
            peer.relays = true;
        }
        for at in &self.relays.trees {
            let room = self.rooms.get_mut(*at);
            if let Some(tree) = room.and_then(|room| room.tree.as_deref_mut()) {
                tree.planned_at = None;
            }
        }
    }

    /// A gateway does not want a room any more.
    pub(super) fn gateway_leaves(&mut self, now: Micros, at: u32, gateway: u32) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        room.gateways.retain(|cursor| cursor.gateway != gateway);
        let Some(tree) = room.tree.as_deref_mut() else { return };
        tree.forget(gateway);
        let orphans = tree.dismiss(gateway);
        orphans
            .into_iter()
            .for_each(|child| self.serve_again(now, at, child, 0));
    }

    /// All gateways of a room get it from the broker again.
    pub(super) fn dissolve_tree(&mut self, now: Micros, at: u32) {
        let Some(room) = self.rooms.get_mut(at) else {
            return;
        };
        let tree = room.tree.as_deref();
        let children: Vec<u32> = tree
            .into_iter()
            .flat_map(|tree| tree.children.keys().copied())
            .collect();
        for gateway in children {
            self.serve_again(now, at, gateway, 0);
        }
        if let Some(room) = self.rooms.get_mut(at) {
            room.tree = None;
        }
        self.relays.trees.remove(&at);
    }
}
