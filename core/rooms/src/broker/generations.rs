//! Generations of a broker's streams: each stream has a later one than all before it in this life.
//!
//! Owns the last one, and up to which they are over. Knows no room.

#[derive(Default)]
pub(super) struct Generations {
    last: u32,
    /// Streams up to this generation may have gone further than this broker knows: it has come back from an earlier state. Each
    /// starts a new stream before it numbers anything more.
    outlived: u32,
}

impl Generations {
    /// The generation of the latest stream; 0: there has been none.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// The generation of the next stream.
    pub fn raise(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1); // 0 means that there is nothing here
        self.last
    }

    /// Whether a stream of this generation may have gone further than is known here.
    pub fn are_over(&self, generation: u32) -> bool {
        generation <= self.outlived
    }

    /// A gateway has more of a stream than this broker ever numbered, or has a later stream, of generation `told`; that of the room is
    /// `here`, or 0. Ends all streams. `false`: they had ended before.
    pub fn came_back(&mut self, here: u32, told: u32) -> bool {
        let further = told > self.last || here > self.outlived;
        if further {
            self.last = self.last.max(told);
            self.outlived = self.last;
        }
        further
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stream_gets_generation_zero() {
        let mut generations = Generations {
            last: u32::MAX - 1,
            outlived: 0,
        };
        assert_eq!([(); 3].map(|()| generations.raise()), [u32::MAX, 1, 2]);
    }

    #[test]
    fn streams_end_once_when_a_gateway_has_more() {
        let mut generations = Generations::default();
        assert_eq!([(); 3].map(|()| generations.raise()), [1, 2, 3]);
        assert!(
            generations.came_back(2, 2),
            "a room of this generation goes on further elsewhere"
        );
        assert!(generations.are_over(3) && !generations.came_back(2, 2));
        assert_eq!(generations.raise(), 4);
        assert!(!generations.are_over(4));
        assert!(generations.came_back(0, 9) && generations.raise() == 10);
    }
}
