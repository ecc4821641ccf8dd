//! The versions of the protocol that an end speaks, and the one that two ends use: the highest that both speak.
//!
//! Owns their form in the payloads of a handshake. The transcript covers them, so nobody on the path can change one. An end that
//! speaks the first version alone says nothing: its bytes are those of the releases before there was a choice. Must not know: the
//! changes of a version.

/// The release of this build, which a refusal names.
const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// Bytes of a release's name that are read; a longer one is cut.
const RELEASE_MAX: usize = 32;
/// Stands for the chosen version where there is none in common.
const NONE: u8 = 0;

/// All versions from the lowest to the highest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    lowest: u8,
    highest: u8,
}

/// Why a responder's answer gives no version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoVersion {
    /// It speaks these, and none of ours. `release`: its own; empty if it said nothing at all.
    Other { theirs: Versions, release: String },
    /// It is no answer to our offer.
    Malformed,
}

impl Versions {
    /// The versions of an end that says nothing.
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

    /// The highest version that both speak.
    pub fn common(self, other: Versions) -> Option<u8> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }

    /// Reads a range. Later releases may say more behind it.
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

    /// The responder's choice for an offer. `Err`: there is none; the initiator speaks these, or said nonsense.
    pub fn choose(self, offer: &[u8]) -> Result<u8, Option<Versions>> {
        let theirs = Versions::read(offer).ok_or(None)?;
        self.common(theirs).ok_or(Some(theirs))
    }

    /// The responder's answer to an offer: its choice and its range, or only nothing where nothing was offered.
    pub fn answer(self, offer: &[u8]) -> Vec<u8> {
        match self.choose(offer) {
            Ok(_) if offer.is_empty() => Vec::new(),
            Ok(version) => vec![version, self.lowest, self.highest],
            Err(_) => [&[NONE, self.lowest, self.highest], RELEASE.as_bytes()].concat(),
        }
    }

    /// The version that an answer gives to the initiator.
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
        fn both_ends_use_the_highest_version_that_both_speak(one in versions(), other in versions()) {
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

        /// Whoever proves a server's key and is no honest server of ours gets no version that was not to be chosen.
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
    fn who_speaks_the_first_version_alone_says_what_the_releases_before_said() {
        assert_eq!(Versions::FIRST.offer(), [0; 0]);
        assert_eq!(Versions::FIRST.answer(&[]), [0; 0]);
        assert_eq!(
            Versions::new(1, 2).answer(&[]),
            [0; 0],
            "and hears no more from a later one"
        );
        assert_eq!(
            Versions::new(1, 2).answered(&[]),
            Ok(1),
            "which takes silence for the first version"
        );
    }

    #[test]
    fn a_later_release_may_say_more() {
        assert_eq!(Versions::new(1, 2).answer(&[1, 3, 9, 9]), [2, 1, 2]);
        assert_eq!(Versions::new(1, 2).answered(&[2, 1, 3, 9]), Ok(2));
    }

    #[test]
    fn nonsense_is_no_version() {
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
