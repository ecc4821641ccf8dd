//! Deltas in the format of Fossil: a target as copies of parts of a source, and what is new.
//!
//! Owns [`delta`]. One pass over each, with a table that holds one place for each hash: no data makes it slow.

/// Bytes of a block of the source that is looked for in the target.
const BLOCK: usize = 16;
/// Copies shorter than this cost more than the bytes that they stand for.
const COPY_MIN: usize = 12;
const DIGITS: &[u8; 64] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz~";

fn put_number(out: &mut Vec<u8>, number: u32) {
    let mut digits = Vec::with_capacity(6);
    let mut left = number;
    loop {
        digits.push(DIGITS[(left & 63) as usize]);
        left >>= 6;
        if left == 0 {
            break;
        }
    }
    out.extend(digits.iter().rev());
}

/// The sum of big-endian words of 4 B, the last one filled with zeros.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.chunks(4).fold(0, |sum: u32, word| {
        let mut whole = [0; 4];
        whole[..word.len()].copy_from_slice(word);
        sum.wrapping_add(u32::from_be_bytes(whole))
    })
}

fn hash(block: &[u8]) -> usize {
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&block[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let mixed = half(0).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ half(8).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (mixed >> 40) as usize
}

fn common(one: impl Iterator<Item = u8>, other: impl Iterator<Item = u8>) -> usize {
    one.zip(other).take_while(|(one, other)| one == other).count()
}

/// The delta that turns `source` into `target`. With `is_text` both are UTF-8 text, and so is the delta.
pub fn delta(source: &[u8], target: &[u8], is_text: bool) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, target.len() as u32);
    out.push(b'\n');
    let blocks = source.len() / BLOCK;
    let mut table = vec![u32::MAX; (2 * blocks).next_power_of_two()];
    let mask = table.len() - 1;
    for at in (0..blocks).rev().map(|block| block * BLOCK) {
        table[hash(&source[at..at + BLOCK]) & mask] = at as u32;
    }
    let (mut from, mut at) = (0, 0);
    while at + BLOCK <= target.len() {
        let there = table[hash(&target[at..at + BLOCK]) & mask] as usize;
        if there >= source.len() || source[there..there + BLOCK] != target[at..at + BLOCK] {
            at += 1;
            continue;
        }
        let before = common(
            source[..there].iter().rev().copied(),
            target[from..at].iter().rev().copied(),
        );
        let behind = common(source[there..].iter().copied(), target[at..].iter().copied());
        let (mut first, mut last) = (at - before, at + behind);
        if is_text {
            // Inserted bytes are text as well, so no character is cut.
            let is_cut = |at: usize| target.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
            while first < last && is_cut(first) {
                first += 1;
            }
            while last > first && is_cut(last) {
                last -= 1;
            }
        }
        if last - first < COPY_MIN {
            at += 1;
            continue;
        }
        put_insert(&mut out, &target[from..first]);
        put_number(&mut out, (last - first) as u32);
        out.push(b'@');
        put_number(&mut out, (there + first - at) as u32);
        out.push(b',');
        (from, at) = (last, last);
    }
    put_insert(&mut out, &target[from..]);
    put_number(&mut out, checksum(target));
    out.push(b';');
    out
}

fn put_insert(out: &mut Vec<u8>, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_number(out, bytes.len() as u32);
        out.push(b':');
        out.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(delta: &mut &[u8]) -> usize {
        let mut value = 0;
        while let Some(digit) = DIGITS.iter().position(|known| *known == delta[0]) {
            value = value << 6 | digit;
            *delta = &delta[1..];
        }
        value
    }

    /// As clients apply it.
    fn applied(source: &[u8], mut delta: &[u8]) -> Vec<u8> {
        let len = number(&mut delta);
        assert_eq!(delta[0], b'\n');
        delta = &delta[1..];
        let mut out = Vec::new();
        loop {
            let count = number(&mut delta);
            let word = delta[0];
            delta = &delta[1..];
            match word {
                b'@' => {
                    let at = number(&mut delta);
                    assert_eq!(delta[0], b',');
                    delta = &delta[1..];
                    out.extend_from_slice(&source[at..at + count]);
                }
                b':' => {
                    out.extend_from_slice(&delta[..count]);
                    delta = &delta[count..];
                }
                _ => {
                    assert_eq!((word, count), (b';', checksum(&out) as usize));
                    assert_eq!((delta.len(), out.len()), (0, len));
                    return out;
                }
            }
        }
    }

    #[test]
    fn a_small_change_of_a_large_text_has_a_small_delta() {
        let source = (0..200)
            .map(|n| format!("{{\"id\":{n},\"name\":\"é{n}\"}}"))
            .collect::<String>();
        let target = source.replace("\"id\":77,", "\"id\":78,");
        let found = delta(source.as_bytes(), target.as_bytes(), true);
        assert_eq!(applied(source.as_bytes(), &found), target.as_bytes());
        assert!(found.len() < 60, "{} B", found.len());
    }

    proptest! {
        #[test]
        fn a_delta_makes_the_target(source in ".{0,200}", middle in ".{0,20}", cut in 0usize..200, other in ".{0,200}") {
            let at = (0..=cut.min(source.len())).rev().find(|at| source.is_char_boundary(*at)).unwrap_or(0);
            let target = format!("{}{middle}{}{other}", &source[..at], &source[at..]);
            let found = delta(source.as_bytes(), target.as_bytes(), true);
            prop_assert!(std::str::from_utf8(&found).is_ok());
            prop_assert_eq!(applied(source.as_bytes(), &found), target.as_bytes());
        }

        #[test]
        fn bytes_are_taken_as_well(source in prop::collection::vec(0u8..4, 0..300), target in prop::collection::vec(0u8..4, 0..300)) {
            prop_assert_eq!(applied(&source, &delta(&source, &target, false)), target);
        }
    }
}
