//! The order of versions: numbers on a circle of 2^64.
//!
//! Owns: which of two versions is later. Knows no packet.
//!
//! A version counts the packets of one epoch of a gateway. It wraps to 0 after 2^64 - 1. Of two versions the later
//! one is less than 2^63 ahead (RFC 1982), which at a million packets a second holds for 292,000 years.

/// Whether `one` is later than `other`.
#[inline]
pub const fn after(one: u64, other: u64) -> bool {
    one.wrapping_sub(other) as i64 > 0
}

/// Number of versions from `first` to `last`, both included; 0 if `first` is the later one.
#[inline]
pub const fn span(first: u64, last: u64) -> u64 {
    if after(first, last) {
        0
    } else {
        last.wrapping_sub(first).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_holds_across_the_end_of_64_bits() {
        assert!(after(0, u64::MAX) && !after(u64::MAX, 0) && !after(5, 5));
        assert!(after(1 << 32, (1 << 32) - 1));
        assert_eq!([span(u64::MAX, 1), span(1, u64::MAX), span(7, 7)], [3, 0, 1]);
    }
}
