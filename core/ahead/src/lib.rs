//! Asks the processor for memory before it is used, so that the cache misses of a batch overlap.
//!
//! Owns [`fetch`], a hint that changes nothing but time. A crate of its own, since it is an instruction and those are `unsafe`.

const LINE: usize = 64;

/// Begins to bring all of `value` into the nearest cache and waits for nothing.
#[inline(always)]
pub fn fetch<T: ?Sized>(value: &T) {
    let first = std::ptr::from_ref(value).cast::<u8>();
    let len = std::mem::size_of_val(value);
    let lead = first as usize % LINE;
    for line in 0..(lead + len).div_ceil(LINE) {
        hint(first.wrapping_sub(lead).wrapping_add(line * LINE));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn hint(line: *const u8) {
    use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
    // SAFETY: a prefetch reads nothing that the program sees and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn hint(line: *const u8) {
    // SAFETY: as above; touches neither stack nor flags.
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
    }
}
