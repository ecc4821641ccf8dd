//! The whole state as bytes, and back.
//!
//! Owns the layout and the cut: a snapshot is the state at one offset, written in slices while records continue.
//! State that a record changes beyond the slices written so far is first saved as it was. A snapshot contains the log
//! offset of the next record; the restored engine continues from there as the original did. Sets of likers are in the
//! portable roaring format. The last four bytes are a CRC32C of all others.

use crate::cut::{Cut, Marks, Out};
use crate::engine::{Engine, Options};
use crate::erasure::{Erasure, Phase};
use crate::items::Item;
use crate::leaderboards::{Leaderboard, Member, Ties};
use crate::likers::Likers;
use crate::limits::{LEADERBOARDS_MAX, LEADERBOARD_MEMBERS_MAX};
use crate::trend::WINDOWS;
use roaring::RoaringBitmap;
use std::collections::{BTreeMap, BTreeSet};

const MAGIC: &[u8; 8] = b"MLikes02";

/// The kinds of entries in the stream: users in the order of their dense ids; items, chains and leaderboards in any
/// order. A leaderboard may come in several parts, of which the first has its settings.
const END: u8 = 0;
const ITEM: u8 = 1;
const CHAIN: u8 = 2;
const USERS: u8 = 3;
const LEADERBOARD: u8 = 4;
/// As a chain, with the time of each like.
const TIMED_CHAIN: u8 = 5;
/// Dense ids of erased users, before all users.
const ERASED: u8 = 6;
const ERASURE: u8 = 7;
/// Slots of leaderboards, if some are free.
const FREE: u8 = 8;

/// Why bytes are not a valid snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("snapshot has another format")]
    OtherFormat,
    #[error("snapshot is damaged")]
    Damaged,
}

impl Engine {
    /// The state after all records below [`Engine::offset`].
    pub fn snapshot(&mut self) -> Vec<u8> {
        self.begin_snapshot();
        let mut all = Vec::new();
        while let Some(part) = self.snapshot_part(usize::MAX) {
            all.extend_from_slice(&part);
        }
        all
    }

    /// Begins a snapshot of the state after all records below the returned offset; drops one in progress.
    pub fn begin_snapshot(&mut self) -> u64 {
        let mut out = Out(MAGIC.to_vec());
        out.u64(self.offset);
        out.u64(self.now_ms);
        self.trends.landmarks.iter().for_each(|&landmark| out.u64(landmark));
        let segments = self.users.segments();
        out.u64(segments.len() as u64);
        for segment in segments {
            out.u32(segment.first);
            out.u32(segment.ids);
        }
        out.u32(self.items.slots());
        out.u32s(self.items.free());
        out.u64(self.deleted.len() as u64);
        for (key, &modification) in &self.deleted {
            out.bytes(key);
            out.u64(modification);
        }
        out.0.push(u8::from(self.options.items_by_user));
        out.u64(self.users.len() as u64);
        if !self.users.erased().is_empty() {
            out.0.push(ERASED);
            let erased: Vec<u32> = self.users.erased().iter().collect();
            out.u32s(&erased);
        }
        if !self.leaderboards.free().is_empty() {
            out.0.push(FREE);
            out.u32(self.leaderboards.slots());
            out.u32s(self.leaderboards.free());
        }
        for (&job, erasure) in &self.erasures.jobs {
            save_erasure(&mut out, job, erasure);
        }
        self.cut = Some(Box::new(Cut {
            out,
            crc: 0,
            users: self.users.len(),
            slots: self.items.slots(),
            ids_done: 0,
            chains_done: 0,
            slots_done: 0,
            offset: self.offset,
            leaderboard: 0,
            member: 0,
            slots_saved: Marks::new(self.items.slots() as usize, self.items.free()),
            chains_saved: Marks::new(self.users.len(), &[]),
            ended: false,
        }));
        self.offset
    }

    /// The next part of the snapshot in progress, of about `bytes`; `None` at its end.
    pub fn snapshot_part(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut cut = self.cut.take()?;
        if cut.ended {
            return None;
        }
        if cut.ids_done < cut.users {
            self.save_ids(&mut cut, bytes / 8 + 1);
        }
        while cut.out.0.len() < bytes && cut.ids_done == cut.users && cut.slots_done < cut.slots {
            let slot = cut.slots_done;
            cut.slots_done += 1;
            if !cut.slots_saved.has(slot) {
                self.save_item(&mut cut.out, slot);
            }
        }
        let chains = if self.options.items_by_user { cut.users } else { 0 };
        while cut.out.0.len() < bytes && cut.slots_done == cut.slots && cut.chains_done < chains {
            let place = cut.chains_done;
            cut.chains_done += 1;
            if !cut.chains_saved.has(place as u32) {
                self.save_chain(&mut cut.out, place);
            }
        }
        while cut.out.0.len() < bytes
            && cut.ids_done == cut.users
            && cut.slots_done == cut.slots
            && cut.chains_done >= chains
            && cut.leaderboard < self.leaderboards.slots()
        {
            self.save_members(&mut cut, bytes);
        }
        if cut.out.0.len() < bytes && cut.ids_done == cut.users {
            cut.out.0.push(END);
            cut.ended = true;
        }
        cut.crc = crc32c::crc32c_append(cut.crc, &cut.out.0);
        if cut.ended {
            let crc = cut.crc;
            cut.out.u32(crc);
        }
        let part = std::mem::take(&mut cut.out.0);
        self.cut = Some(cut);
        Some(part)
    }

    /// Called before the id of a user goes.
    pub(crate) fn ids_will_change(&mut self) {
        let Some(mut cut) = self.cut.take() else { return };
        if cut.ids_done < cut.users {
            self.save_ids(&mut cut, usize::MAX);
        }
        self.cut = Some(cut);
    }

    fn save_ids(&self, cut: &mut Cut, most: usize) {
        let ids = (cut.users - cut.ids_done).min(most);
        cut.out.0.push(USERS);
        cut.out.u32(ids as u32);
        self.users.ids(cut.ids_done).take(ids).for_each(|id| cut.out.u64(id));
        cut.ids_done += ids;
    }

    /// Called before an item changes or is deleted.
    pub(crate) fn item_will_change(&mut self, slot: u32) {
        let Some(cut) = &self.cut else { return };
        let done = slot < cut.slots_done || slot >= cut.slots;
        if done || cut.slots_saved.has(slot) {
            return;
        }
        let mut cut = self.cut.take().expect("a snapshot is under way");
        self.save_item(&mut cut.out, slot);
        cut.slots_saved.mark(slot);
        self.cut = Some(cut);
    }

    /// Called before the list of a user's items changes.
    pub(crate) fn chain_will_change(&mut self, dense: u32) {
        let Some(cut) = &self.cut else { return };
        let place = self.users.place(dense);
        let done = (place as usize) < cut.chains_done || place as usize >= cut.users;
        if done || cut.chains_saved.has(place) {
            return;
        }
        let mut cut = self.cut.take().expect("a snapshot is under way");
        self.save_chain(&mut cut.out, place as usize);
        cut.chains_saved.mark(place);
        self.cut = Some(cut);
    }

    /// Called before all items change.
    pub(crate) fn all_items_will_change(&mut self) {
        for slot in 0..self.cut.as_ref().map_or(0, |cut| cut.slots) {
            self.item_will_change(slot);
        }
    }

    /// Called before a member changes or leaves.
    pub(crate) fn member_will_change(&mut self, slot: u32, name: &[u8]) {
        let Some(mut cut) = self.cut.take() else { return };
        let board = self.leaderboards.get(slot).expect("slot is in use");
        if let Some(place) = board.members.find(name) {
            let done = (slot, place) < (cut.leaderboard, cut.member);
            let member = board.members.get(place).expect("slot is in use");
            if !done && member.since <= cut.offset {
                save_head(&mut cut.out, slot, board);
                cut.out.u32(1);
                save_member(&mut cut.out, place, member);
            }
        }
        self.cut = Some(cut);
    }

    /// Called before the settings of a leaderboard change, or it goes.
    pub(crate) fn leaderboard_will_change(&mut self, slot: u32) {
        let Some(mut cut) = self.cut.take() else { return };
        let board = self.leaderboards.get(slot).expect("slot is in use");
        if slot >= cut.leaderboard && board.since <= cut.offset {
            save_head(&mut cut.out, slot, board);
            cut.out.u32(0);
        }
        self.cut = Some(cut);
    }

    /// Called before a leaderboard goes with all members.
    pub(crate) fn all_members_will_change(&mut self, slot: u32) {
        self.leaderboard_will_change(slot);
        let Some(mut cut) = self.cut.take() else { return };
        if slot >= cut.leaderboard {
            let at = (cut.leaderboard, cut.member);
            if slot > cut.leaderboard {
                (cut.leaderboard, cut.member) = (slot, 0);
            }
            self.save_members(&mut cut, usize::MAX);
            // The walk goes on where it was, or behind this one: nothing of it is left.
            if at.0 < slot {
                (cut.leaderboard, cut.member) = at;
            }
        }
        self.cut = Some(cut);
    }

    /// Called before all members of all leaderboards change.
    pub(crate) fn all_leaderboards_will_change(&mut self) {
        let Some(mut cut) = self.cut.take() else { return };
        while cut.leaderboard < self.leaderboards.slots() {
            self.save_members(&mut cut, usize::MAX);
        }
        self.cut = Some(cut);
    }

    /// The next leaderboard's members from where the cut is, until the part has about `bytes`. Members and settings that
    /// changed since the start were saved then.
    fn save_members(&self, cut: &mut Cut, bytes: usize) {
        let (slot, first) = (cut.leaderboard, cut.member);
        let Some(board) = self.leaderboards.get(slot) else {
            (cut.leaderboard, cut.member) = (slot + 1, 0);
            return;
        };
        let begin = cut.out.0.len();
        save_head(&mut cut.out, slot, board);
        let at = cut.out.0.len();
        cut.out.u32(0);
        let (mut place, mut saved) = (first, 0_u32);
        while place < board.members.slots() && (cut.out.0.len() < bytes || place == first) {
            if let Some(member) = board.members.get(place).filter(|member| member.since <= cut.offset) {
                save_member(&mut cut.out, place, member);
                saved += 1;
            }
            place += 1;
        }
        cut.out.0[at..at + 4].copy_from_slice(&saved.to_le_bytes());
        if saved == 0 && (board.since > cut.offset || first > 0) {
            cut.out.0.truncate(begin);
        }
        (cut.leaderboard, cut.member) = match place < board.members.slots() {
            true => (slot, place),
            false => (slot + 1, 0),
        };
    }

    fn save_item(&self, out: &mut Out, slot: u32) {
        let Some(item) = self.items.get(slot) else { return };
        out.0.push(ITEM);
        out.u32(slot);
        out.bytes(&item.key);
        out.u64(item.modification);
        out.0.extend_from_slice(&item.bits.to_le_bytes());
        out.0.push(u8::from(item.derived) | u8::from(item.dirty) << 1);
        item.trends.iter().for_each(|score| out.u64(score.to_bits()));
        out.u32(item.fields.len() as u32);
        item.fields.iter().for_each(|&field| out.bytes(self.boards.name(field)));
        out.u32s(&item.newest);
        let likers = item.likers.bitmap();
        out.u32(likers.serialized_size() as u32);
        likers.serialize_into(&mut out.0).expect("a vector takes all bytes");
    }

    fn save_chain(&self, out: &mut Out, place: usize) {
        let (likes_at_most, liked) = self.users.chain(place);
        let (items, times): (Vec<u32>, Vec<u32>) = liked.unzip();
        out.0.push(TIMED_CHAIN);
        out.u32(place as u32);
        out.u32(likes_at_most);
        out.u32s(&items);
        out.u32s(&times);
    }

    /// Restores the engine that [`Engine::snapshot`] was called on.
    pub fn restore(bytes: &[u8], options: Options) -> Result<Engine, RestoreError> {
        if !bytes.starts_with(MAGIC) {
            return Err(RestoreError::OtherFormat);
        }
        let (body, crc) = bytes.split_at_checked(bytes.len() - 4).ok_or(RestoreError::Damaged)?;
        if crc != crc32c::crc32c(body).to_le_bytes() {
            return Err(RestoreError::Damaged);
        }
        read(&mut In(body.get(MAGIC.len()..).unwrap_or_default()), options).ok_or(RestoreError::Damaged)
    }
}

fn save_head(out: &mut Out, slot: u32, board: &Leaderboard) {
    out.0.push(LEADERBOARD);
    out.u32(slot);
    out.bytes(&board.name);
    out.0.push(board.ties as u8);
    out.u64(board.since);
}

fn save_erasure(out: &mut Out, job: u64, erasure: &Erasure) {
    out.0.push(ERASURE);
    out.u64(job);
    out.0.push(erasure.phase as u8);
    out.0
        .push(u8::from(erasure.user.is_some()) | u8::from(erasure.dense.is_some()) << 1);
    out.u64(erasure.user.unwrap_or(0));
    out.u32(erasure.dense.unwrap_or(0));
    out.u32(erasure.slot);
    for number in [
        erasure.items,
        erasure.leaderboards,
        erasure.derived,
        erasure.members,
        erasure.since,
        erasure.at_ms,
    ] {
        out.u64(number);
    }
    out.u32(erasure.snapshots);
    out.u32(erasure.segments);
    out.u32(erasure.kinds.len() as u32);
    for (kind, &likes) in &erasure.kinds {
        out.bytes(kind);
        out.u64(likes);
    }
}

fn read_erasure(from: &mut In) -> Option<(u64, Erasure)> {
    let job = from.u64()?;
    let phase = *Phase::ALL.get(usize::from(from.take(1)?[0]))?;
    let flags = from.take(1)?[0];
    let (user, dense, slot) = (from.u64()?, from.u32()?, from.u32()?);
    let mut erasure = Erasure {
        phase,
        user: (flags & 1 == 1).then_some(user),
        dense: (flags & 2 == 2).then_some(dense),
        slot,
        items: from.u64()?,
        leaderboards: from.u64()?,
        derived: from.u64()?,
        members: from.u64()?,
        since: from.u64()?,
        at_ms: from.u64()?,
        snapshots: from.u32()?,
        segments: from.u32()?,
        kinds: BTreeMap::new(),
    };
    for _ in 0..from.u32()? {
        erasure.kinds.insert(from.bytes()?.to_vec(), from.u64()?);
    }
    // The state names the user until the phase of files, and only until then.
    (erasure.user.is_some() == (phase < Phase::Files)).then_some((job, erasure))
}

fn save_member(out: &mut Out, place: u32, member: &Member) {
    out.u32(place);
    out.bytes(&member.name);
    out.u64(member.score.to_bits());
    out.u64(member.since);
    member.trends.iter().for_each(|trend| out.u64(trend.to_bits()));
}

fn read(from: &mut In, options: Options) -> Option<Engine> {
    let mut engine = Engine::new(options);
    engine.offset = from.u64()?;
    engine.now_ms = from.u64()?;
    for landmark in &mut engine.trends.landmarks {
        *landmark = from.u64()?;
    }
    for _ in 0..from.u64()? {
        let (first, ids) = (from.u32()?, from.u32()?);
        if !engine.users.add_segment(first, ids) {
            return None;
        }
    }
    let (slots, free) = (from.u32()?, from.u32s()?);
    for _ in 0..from.u64()? {
        let (key, modification) = (from.bytes()?.into(), from.u64()?);
        engine.deleted.insert(key, modification);
    }
    let listed = from.take(1)?[0] == 1;
    let users = from.u64()?;
    let (mut items, mut chains) = (Vec::new(), Vec::new());
    let (mut erased, mut boards) = (BTreeSet::new(), None);
    loop {
        match from.take(1)?[0] {
            ITEM => items.push(read_item(from, &mut engine)?),
            kind @ (CHAIN | TIMED_CHAIN) => {
                let (place, likes_at_most, listed) = (from.u32()?, from.u32()?, from.u32s()?);
                let times = match kind {
                    CHAIN => vec![0; listed.len()], // an earlier version kept no times
                    _ => from.u32s()?,
                };
                if u64::from(place) >= users || times.len() != listed.len() {
                    return None;
                }
                let listed: Vec<(u32, u32)> = listed.into_iter().zip(times).collect();
                chains.push((place, likes_at_most, listed));
            }
            LEADERBOARD => read_leaderboard(from, &mut engine)?,
            USERS => {
                for _ in 0..from.u32()? {
                    let user = from.u64()?;
                    match erased.contains(&engine.users.next_dense()?) {
                        true => engine.users.add_erased()?,
                        false => engine.users.find_or_add(user)?,
                    };
                }
            }
            ERASED => erased.extend(from.u32s()?),
            FREE => boards = Some((from.u32()?, from.u32s()?)),
            ERASURE => {
                let (job, erasure) = read_erasure(from)?;
                engine.erasures.restore(job, erasure);
            }
            END => break,
            _ => return None,
        }
    }
    match boards {
        None => engine.leaderboards.restored(),
        Some((slots, free)) => engine.leaderboards.restored_as(slots, free).then_some(())?,
    }
    engine
        .leaderboards
        .iter_mut()
        .for_each(|board| board.members.restored());
    items.sort_unstable_by_key(|(slot, _)| *slot);
    let taken: Vec<u32> = items.iter().map(|(slot, _)| *slot).collect();
    let twice = taken.windows(2).any(|pair| pair[0] == pair[1]);
    if twice || items.len() + free.len() != slots as usize || taken.iter().chain(&free).any(|&slot| slot >= slots) {
        return None;
    }
    engine.items.restore(slots, free, items);
    for slot in taken {
        engine.boards.enter(slot, &engine.items);
    }
    if engine.users.len() as u64 != users || (listed && chains.len() as u64 != users) {
        return None;
    }
    if options.items_by_user {
        chains.sort_unstable_by_key(|(place, ..)| *place);
        for (place, likes_at_most, items) in chains {
            engine.users.restore_chain(place as usize, likes_at_most, &items);
        }
    }
    from.0.is_empty().then_some(engine)
}

fn read_item(from: &mut In, engine: &mut Engine) -> Option<(u32, Item)> {
    let (slot, key, modification) = (from.u32()?, from.bytes()?.into(), from.u64()?);
    let bits = u128::from_le_bytes(from.take(16)?.try_into().ok()?);
    let flags = from.take(1)?[0];
    let mut trends = [0.0; WINDOWS.len()];
    for score in &mut trends {
        *score = f64::from_bits(from.u64()?);
    }
    let mut fields = Vec::new();
    for _ in 0..from.u32()? {
        fields.push(engine.boards.field(from.bytes()?));
    }
    let newest = from.u32s()?;
    let likers = Likers::from_bitmap(RoaringBitmap::deserialize_from(from.bytes()?).ok()?);
    let (derived, dirty) = (flags & 1 == 1, flags & 2 == 2);
    if dirty {
        engine.dirty.insert(slot);
    }
    if !derived {
        engine.likes += likers.len();
    }
    let mut item = Item {
        key,
        likers,
        newest,
        modification,
        bits,
        trends,
        fields: fields.into(),
        derived,
        dirty,
        told: false,
    };
    item.refill_newest(); // earlier versions left gaps
    Some((slot, item))
}

fn read_leaderboard(from: &mut In, engine: &mut Engine) -> Option<()> {
    let (slot, name) = (from.u32()?, from.bytes()?);
    let ties = *[Ties::Name, Ties::Time].get(usize::from(from.take(1)?[0]))?;
    let since = from.u64()?;
    match engine.leaderboards.get(slot) {
        Some(board) if *board.name == *name => {} // a further part
        Some(_) => return None,
        None => {
            let mut board = Leaderboard::new(name, since);
            board.ties = ties;
            if slot as usize >= LEADERBOARDS_MAX || !engine.leaderboards.restore_one(slot, board) {
                return None;
            }
        }
    }
    for _ in 0..from.u32()? {
        let place = from.u32()?;
        let mut member = Member {
            name: from.bytes()?.into(),
            score: f64::from_bits(from.u64()?),
            since: from.u64()?,
            trends: [0.0; WINDOWS.len()],
        };
        for trend in &mut member.trends {
            *trend = f64::from_bits(from.u64()?);
        }
        let members = &mut engine.leaderboards.get_mut(slot).members;
        if place as usize >= LEADERBOARD_MEMBERS_MAX || member.score.is_nan() || !members.restore_one(place, member) {
            return None;
        }
        engine.members += 1;
    }
    Some(())
}

struct In<'a>(&'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn u32s(&mut self) -> Option<Vec<u32>> {
        let len = self.u32()? as usize;
        let bytes = self.take(len.checked_mul(4)?)?;
        Some(
            bytes
                .chunks_exact(4)
                .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes")))
                .collect(),
        )
    }
}
