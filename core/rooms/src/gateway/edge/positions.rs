//! A member's positions as the client protocol carries them: an epoch and an offset.
//!
//! Owns the mapping. The offset is that of the room's newest stream; the epoch is all positions with that one's offset as 0, in
//! base64url: 28 characters for a room with one stream. Any edge can read it.

use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use base64::Engine;
use muster_edge::protocol::Position;
use muster_transport::{Reader, Writer};

use crate::wire::publish::Positions;
use crate::wire::room::STREAMS_MAX;
use crate::wire::StreamId;

/// Bytes of the longest positions.
const BYTES_MAX: usize = 1 + STREAMS_MAX * (StreamId::LEN + 8);

/// The position of a client that has these, in a room whose newest stream is this one.
pub(super) fn told(positions: &Positions, newest: StreamId) -> Position {
    let offset = positions.of(newest).map_or(0, |known| known.offset);
    let others = positions.0.iter().filter(|known| known.stream != newest).copied();
    let last = positions
        .of(newest)
        .map(|known| crate::wire::publish::Position { offset: 0, ..known });
    let epoch = Positions(others.chain(last).collect());
    let mut bytes = [0; BYTES_MAX];
    let mut writer = Writer::new(&mut bytes);
    epoch.write(&mut writer);
    let len = writer.len();
    Position {
        offset,
        epoch: URL_SAFE_NO_PAD.encode(&bytes[..len]),
    }
}

/// The positions that a client shows. `None`: no edge has told it that.
pub(super) fn shown(position: &Position) -> Option<Positions> {
    let bytes = URL_SAFE_NO_PAD.decode(&position.epoch).ok()?;
    let mut reader = Reader::new(&bytes);
    let mut positions = Positions::read(&mut reader)?;
    if !reader.is_empty() || position.offset > muster_transport::NUMBER_MAX {
        return None;
    }
    positions.0.last_mut()?.offset = position.offset;
    Some(positions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(node: u32) -> StreamId {
        StreamId {
            node,
            epoch: 1_700_000_000,
            generation: 3,
        }
    }

    #[test]
    fn the_epoch_of_a_room_with_one_stream_has_28_characters_and_stays_while_the_offset_grows() {
        let at = |offset| told(&Positions::at([(stream(5), offset)]), stream(5));
        assert_eq!(at(7).epoch.len(), 28);
        assert_eq!((at(7).epoch, at(7).offset), (at(9).epoch, 7));
    }

    proptest! {
        #[test]
        fn positions_survive_their_way_through_a_client(
            offsets in prop::collection::vec(0u64..1 << 40, 1..=STREAMS_MAX), newest in any::<prop::sample::Index>(),
        ) {
            let streams = (0u32..).map(stream).zip(offsets);
            let positions = Positions::at(streams);
            let newest = positions.0[newest.index(positions.0.len())].stream;
            let back = shown(&told(&positions, newest)).expect("it was told");
            prop_assert_eq!(back.0.last().map(|known| known.stream), Some(newest));
            for known in &positions.0 {
                prop_assert_eq!(back.of(known.stream), Some(*known));
            }
        }

        #[test]
        fn any_epoch_shows_positions_or_none(epoch in ".{0,120}", offset: u64) {
            let _ = shown(&Position { epoch, offset });
        }
    }
}
