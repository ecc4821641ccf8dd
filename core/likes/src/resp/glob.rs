//! Patterns of `SCAN … MATCH`, as in Redis: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before any of these.
//!
//! Time is bounded by the pattern's length times the key's: only the last `*` is ever retried.

pub(crate) fn matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, place));
            at += 1;
            continue;
        }
        if place == key.len() && at == pattern.len() {
            return true;
        }
        let step = key.get(place).and_then(|&byte| one(&pattern[at..], byte));
        match (step, star) {
            (Some(step), _) => (at, place) = (at + step, place + 1),
            (None, Some((after, tried))) if tried < key.len() => {
                star = Some((after, tried + 1));
                (at, place) = (after, tried + 1);
            }
            _ => return false,
        }
    }
}

/// Length of the pattern's first element if it matches `byte`, otherwise `None`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => {
            let (inside, len) = in_class(class, byte);
            inside.then_some(1 + len)
        }
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [other, ..] => (*other == byte).then_some(1),
    }
}

/// Whether a class contains `byte`, and the length of the class after its `[`.
fn in_class(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut inside = false;
    loop {
        match &class[at.min(class.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                inside |= *escaped == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                inside |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [other, ..] => {
                inside |= *other == byte;
                at += 1;
            }
        }
    }
    (inside != negated, at)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, key, wanted) in [
            ("*", "", true),
            ("*", "share:1", true),
            ("share:*", "share:1", true),
            ("share:*", "comment:1", false),
            ("*:1", "share:11", false),
            ("*:1", "share:21:1", true),
            ("s?are:1", "share:1", true),
            ("s?are:1", "sare:1", false),
            ("share:[12]", "share:2", true),
            ("share:[^12]", "share:2", false),
            ("share:[a-c]", "share:b", true),
            ("share:[c-a]", "share:b", true),
            ("share:[ab", "share:b", true),
            ("share:\\*", "share:*", true),
            ("share:\\*", "share:1", false),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3d", false),
            ("", "a", false),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), key.as_bytes()), wanted, "{pattern} {key}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        assert!(!matches(&b"*a".repeat(200), &b"b".repeat(500)));
    }
}
