//! Prefetches memory before it is used, so that the cache misses of a batch overlap.
//!
//! Owns [`fetch`] and [`fetch_part`], hints that change nothing except time. A separate crate, since prefetch
//! instructions need `unsafe`.

use std::ops::Range;

const LINE: usize = 64;

/// Starts loading all of `value` into the nearest cache, without waiting.
#[inline(always)]
pub fn fetch<T: ?Sized>(value: &T) {
    fetch_part(value, 0..std::mem::size_of_val(value));
}

/// As [`fetch`], for the bytes of `value` at `part`.
#[inline(always)]
pub fn fetch_part<T: ?Sized>(value: &T, part: Range<usize>) {
    let first = std::ptr::from_ref(value).cast::<u8>();
    let lead = (first as usize + part.start) % LINE;
    for at in (0..lead + part.len()).step_by(LINE) {
        hint(first.wrapping_add(part.start + at).wrapping_sub(lead));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn hint(line: *const u8) {
    use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
    // SAFETY: a prefetch reads nothing that the program observes, and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn hint(line: *const u8) {
    // SAFETY: as above; uses neither stack nor flags.
    unsafe { std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn hint(_: *const u8) {}

#[cfg(test)]
mod tests {
    #[test]
    fn anything_can_be_fetched() {
        super::fetch(&());
        super::fetch(&[0u8; 1_000][..]);
        super::fetch("text");
        super::fetch_part(&[0u64; 100], 100..700);
        super::fetch_part(&0u8, 5_000..5_001);
    }
}
