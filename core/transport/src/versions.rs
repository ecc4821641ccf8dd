//! The protocol versions that an end supports, and the one that two ends use: the highest that both support.
//!
//! Owns their encoding in the payloads of a handshake. The transcript covers them, so nobody on the path can change
//! one. An end that supports only the first version sends nothing: its bytes equal those of releases before there was
//! a choice. Must not know: the changes of a version.

/// The release of this build, sent in a refusal.
const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Bytes of a release's name that are read; the rest is cut.
const RELEASE_MAX: usize = 32;
/// Stands for the chosen version if none is in common.
const NONE: u8 = 0;

/// All versions from the lowest to the highest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    lowest: u8,
    highest: u8,
}

/// Why a responder's reply gives no version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoVersion {
    /// It supports these versions, and none of ours. `release`: its release; empty if it sent nothing.
    Other { theirs: Versions, release: String },
    /// It does not fit our offer.
    Malformed,
}

impl Versions {
    /// The versions of an end that sends nothing.
    pub const FIRST: Versions = Versions::new(1, 1);
    /// The versions of this build.
    pub const OURS: Versions = Versions::new(1, 1);

    /// # Panics
    /// If the lowest is 0, or above the highest.
    pub const fn new(lowest: u8, highest: u8) -> Self {
        assert!(lowest > NONE && lowest <= highest, "versions from the lowest on");
        Versions { lowest, highest }
    }

    pub const fn lowest(self) -> u8 {
        self.lowest
    }

    pub const fn highest(self) -> u8 {
        self.highest
    }

    /// The highest version that both support.
    pub fn common(self, other: Versions) -> Option<u8> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }

    /// Reads a range. Later releases may append more.
    fn read(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [] => Some(Versions::FIRST),
            [lowest, highest, ..] if NONE < lowest && lowest <= highest => Some(Versions { lowest, highest }),
            _ => None,
        }
    }

    /// The initiator's offer.
    pub fn offer(self) -> Vec<u8> {
        match self {
            Versions::FIRST => Vec::new(),
            Versions { lowest, highest } => vec![lowest, highest],
        }
    }

    /// The responder's choice for an offer. `Err`: none; the initiator supports these versions, or its offer is
    /// malformed.
    pub fn choose(self, offer: &[u8]) -> Result<u8, Option<Versions>> {
        let theirs = Versions::read(offer).ok_or(None)?;
        self.common(theirs).ok_or(Some(theirs))
    }

    /// The responder's reply to an offer: its choice and its range; or nothing if nothing was offered.
    pub fn answer(self, offer: &[u8]) -> Vec<u8> {
        match self.choose(offer) {
            Ok(_) if offer.is_empty() => Vec::new(),
            Ok(version) => vec![version, self.lowest, self.highest],
            Err(_) => [&[NONE, self.lowest, self.highest], RELEASE.as_bytes()].concat(),
        }
    }

    /// The version that a reply gives to the initiator.
    pub fn answered(self, answer: &[u8]) -> Result<u8, NoVersion> {
        let (version, range) = answer
            .split_first()
            .map_or((1, answer), |(version, range)| (*version, range));
        let theirs = Versions::read(range).filter(|_| answer.len() != 1);
        let theirs = theirs.ok_or(NoVersion::Malformed)?;
        match self.common(theirs) {
            Some(common) if common == version => Ok(version),
            None if version == NONE || answer.is_empty() => {
                let release = range.get(2..).unwrap_or_default();
                let release = String::from_utf8_lossy(&release[..release.len().min(RELEASE_MAX)]);
                let release = release.chars().filter(char::is_ascii_graphic).collect();
                Err(NoVersion::Other { theirs, release })
            }
            _ => Err(NoVersion::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn versions() -> impl Strategy<Value = Versions> {
        (1u8..6, 0u8..4).prop_map(|(lowest, more)| Versions::new(lowest, lowest + more))
    }

    proptest! {
        #[test]
        fn both_ends_use_the_highest_version_that_both_support(one in versions(), other in versions()) {
            let offer = one.offer();
            let common = (1..=10).rev().find(|version| {
                let speaks = |all: Versions| (all.lowest()..=all.highest()).contains(version);
                speaks(one) && speaks(other)
            });
            prop_assert_eq!(other.choose(&offer).ok(), common);
            let answered = one.answered(&other.answer(&offer));
            prop_assert_eq!(answered.as_ref().ok(), common.as_ref());
            if common.is_none() {
                let release = RELEASE.to_owned();
                prop_assert_eq!(answered, Err(NoVersion::Other { theirs: other, release }));
                prop_assert_eq!(other.choose(&offer), Err(Some(one)));
            }
        }

        /// Not even a dishonest server with a valid key can get a version that the rules would not choose.
        #[test]
        fn no_answer_lowers_the_version(ours in versions(), answer in prop::collection::vec(0u8..8, 0..6)) {
            if let Ok(version) = ours.answered(&answer) {
                let theirs = answer.get(1..).map_or(Some(Versions::FIRST), Versions::read);
                prop_assert_eq!(theirs.and_then(|theirs| ours.common(theirs)), Some(version));
            }
        }

        #[test]
        fn any_offer_gets_an_answer(ours in versions(), offer in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(ours.answer(&offer).len() <= 3 + RELEASE.len());
        }
    }

    #[test]
    fn an_end_with_only_the_first_version_sends_the_bytes_of_earlier_releases() {
        assert_eq!(Versions::FIRST.offer(), [0; 0]);
        assert_eq!(Versions::FIRST.answer(&[]), [0; 0]);
        assert_eq!(
            Versions::new(1, 2).answer(&[]),
            [0; 0],
            "and gets no more from a later one"
        );
        assert_eq!(
            Versions::new(1, 2).answered(&[]),
            Ok(1),
            "which takes silence for the first version"
        );
    }

    #[test]
    fn a_later_release_may_append_more() {
        assert_eq!(Versions::new(1, 2).answer(&[1, 3, 9, 9]), [2, 1, 2]);
        assert_eq!(Versions::new(1, 2).answered(&[2, 1, 3, 9]), Ok(2));
    }

    #[test]
    fn a_malformed_offer_is_refused() {
        let ours = Versions::new(1, 2);
        for offer in [&[1][..], &[0, 1], &[2, 1]] {
            assert_eq!(ours.choose(offer), Err(None), "{offer:?}");
            assert_eq!(ours.answer(offer)[..3], [0, 1, 2]);
        }
        for answer in [&[1][..], &[1, 1], &[2, 0, 2], &[1, 1, 2], &[3, 1, 3], &[0, 1, 2], &[0]] {
            assert_eq!(ours.answered(answer), Err(NoVersion::Malformed), "{answer:?}");
        }
        let refusal = [&[0, 4, 5][..], "1.0\u{1b}[31m\n".as_bytes(), &[255; 60]].concat();
        let release = "1.0[31m".to_owned();
        let theirs = Versions::new(4, 5);
        assert_eq!(ours.answered(&refusal), Err(NoVersion::Other { theirs, release }));
    }
}
