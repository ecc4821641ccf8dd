//! The whole state as bytes, and back.
//!
//! Owns the layout. A snapshot names the log offset up to which records are in it; the engine that it gives goes on from there as the first one did.
//! Sets of likers are in the portable roaring format. The last four bytes are a CRC32C of all others.

use crate::engine::{Engine, Options};
use crate::items::Item;
use crate::likers::Likers;
use crate::planted::{self, Bug};
use crate::trend::WINDOWS;
use roaring::RoaringBitmap;

const MAGIC: &[u8; 8] = b"MLikes01";

/// Why bytes are no snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("snapshot has another format")]
    OtherFormat,
    #[error("snapshot is damaged")]
    Damaged,
}

impl Engine {
    /// The state after all records below [`Engine::offset`].
    pub fn snapshot(&self) -> Vec<u8> {
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
        out.u64(self.users.len() as u64);
        self.users.ids().for_each(|id| out.u64(id));
        out.u32(self.items.slots());
        out.u32s(self.items.free());
        out.u64(self.items.len() as u64);
        for (slot, item) in self.items.iter() {
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
        out.u64(self.deleted.len() as u64);
        for (key, &modification) in &self.deleted {
            out.bytes(key);
            out.u64(modification);
        }
        out.0.push(u8::from(self.options.items_by_user));
        if self.options.items_by_user {
            for place in 0..self.users.len() {
                let (likes_at_most, items) = self.users.chain(place);
                out.u32(likes_at_most);
                let at = out.0.len();
                out.u32(0);
                items.for_each(|item| out.u32(item));
                let len = ((out.0.len() - at) / 4 - 1) as u32;
                out.0[at..at + 4].copy_from_slice(&len.to_le_bytes());
            }
        }
        let crc = crc32c::crc32c(&out.0);
        out.u32(crc);
        out.0
    }

    /// The engine that [`Engine::snapshot`] was asked of.
    pub fn restore(bytes: &[u8], options: Options) -> Result<Engine, RestoreError> {
        if !bytes.starts_with(MAGIC) {
            return Err(RestoreError::OtherFormat);
        }
        let (body, crc) = bytes.split_at_checked(bytes.len() - 4).ok_or(RestoreError::Damaged)?;
        if crc != crc32c::crc32c(body).to_le_bytes() {
            return Err(RestoreError::Damaged);
        }
        read(&mut In(&body[MAGIC.len()..]), options).ok_or(RestoreError::Damaged)
    }
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
    let users = from.u64()?;
    for _ in 0..users {
        engine.users.find_or_add(from.u64()?)?;
    }
    let (slots, free) = (from.u32()?, from.u32s()?);
    let mut items = Vec::new();
    for _ in 0..from.u64()? {
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
        let (derived, dirty) = (flags & 1 == 1, flags & 2 == 2 && !planted::is(Bug::DirtyNotRestored));
        if dirty {
            engine.dirty.insert(slot);
        }
        if !derived {
            engine.likes += likers.len();
        }
        let fields = fields.into();
        items.push((
            slot,
            Item {
                key,
                likers,
                newest,
                modification,
                bits,
                trends,
                fields,
                derived,
                dirty,
            },
        ));
    }
    let taken: Vec<u32> = items.iter().map(|(slot, _)| *slot).collect();
    if items.len() + free.len() != slots as usize || taken.iter().chain(&free).any(|&slot| slot >= slots) {
        return None;
    }
    engine.items.restore(slots, free, items);
    for slot in taken {
        engine.boards.enter(slot, &engine.items);
    }
    for _ in 0..from.u64()? {
        let (key, modification) = (from.bytes()?.into(), from.u64()?);
        engine.deleted.insert(key, modification);
    }
    let listed = from.take(1)?[0] == 1;
    if listed {
        for place in 0..engine.users.len() {
            let likes_at_most = from.u32()?;
            let items = from.u32s()?;
            if options.items_by_user {
                engine.users.restore_chain(place, likes_at_most, &items);
            }
        }
    }
    from.0.is_empty().then_some(engine)
}

struct Out(Vec<u8>);

impl Out {
    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }

    fn u32s(&mut self, numbers: &[u32]) {
        self.u32(numbers.len() as u32);
        numbers.iter().for_each(|&number| self.u32(number));
    }
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
