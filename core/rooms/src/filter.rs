//! A member's filter: which messages of a room it wants.
//!
//! Owns: the bounds and bytes of a filter, and whether it lets a message through. Must not know: rooms, roles, chunks, time: a
//! gateway keeps to the number of messages a second. The
//! answer depends on nothing but the message: its headers, its publisher and the sequence of its first chunk, which it keeps
//! whichever owner numbers it. So a gateway, another one after it and the member agree, however often they look.

use muster_transport::{Dice, Micros, Reader, Writer};

use crate::headers::{self, HEADER_NAME_BYTES_MAX};
use crate::wire::PublisherId;

/// Maximum number of headers that a filter compares: each is looked for in each message.
pub const FILTER_HEADERS_MAX: usize = 4;
/// Maximum number of values of one header.
pub const FILTER_VALUES_MAX: usize = 16;
/// Maximum bytes of a filter's names and values, with two for each value and two for each name. A record has space for it.
pub const FILTER_BYTES_MAX: usize = 512;
/// The thinnest sample is one message of this many.
pub const ONE_IN_MAX: u32 = 1_000_000;
/// The most messages a second that a filter can ask for.
pub const PER_S_MAX: u32 = 1_000;

/// Why a filter is refused: its author's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// It would let everything through.
    Empty,
    /// More than [`FILTER_HEADERS_MAX`] headers.
    TooManyHeaders,
    /// No value for a header, or more than [`FILTER_VALUES_MAX`].
    BadValues,
    /// Longer than [`FILTER_BYTES_MAX`].
    TooLong,
    /// No name of a header.
    BadName,
    /// The header occurs twice.
    Repeated,
    /// Not between 1 and [`ONE_IN_MAX`].
    BadSample,
    /// Not between 1 and [`PER_S_MAX`].
    BadRate,
}

impl FilterError {
    /// The reason in words.
    pub fn text(self) -> &'static str {
        const { assert!(FILTER_HEADERS_MAX == 4 && FILTER_VALUES_MAX == 16 && FILTER_BYTES_MAX == 512) };
        const { assert!(HEADER_NAME_BYTES_MAX == 64 && ONE_IN_MAX == 1_000_000 && PER_S_MAX == 1_000) };
        match self {
            FilterError::Empty => "a filter compares a header, takes one message in 2 or more, or has a limit a second",
            FilterError::TooManyHeaders => "a filter compares at most 4 headers",
            FilterError::BadValues => "a header of a filter has 1 to 16 values",
            FilterError::TooLong => "the names and values of a filter have at most 512 bytes, 2 more for each included",
            FilterError::BadName => "the name of a header has 1 to 64 letters, digits, '-', '_' and '.'",
            FilterError::Repeated => "a filter names each header once",
            FilterError::BadSample => "a sample is one message in 1 to 1000000",
            FilterError::BadRate => "a filter takes at most 1 to 1000 messages a second",
        }
    }
}

impl std::fmt::Display for FilterError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

/// A header by name, and the values that are wanted of it.
type Equal = (Box<str>, Box<[Box<str>]>);

/// A filter: each named header has one of its values, and of the messages about one in `one_in` is taken. Of these a member may
/// want at most so many a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    equal: Box<[Equal]>,
    one_in: u32,
    /// 0: all.
    at_most_per_s: u16,
}

impl Filter {
    /// A filter of these headers with their values, and of one message in `one_in`; 1 takes all.
    pub fn new<'a, V>(equal: impl IntoIterator<Item = (&'a str, V)>, one_in: u32) -> Result<Self, FilterError>
    where
        V: IntoIterator<Item = &'a str>,
    {
        Filter::latest(equal, one_in, None)
    }

    /// The same, and of the messages that match at most so many a second, the newest each time.
    pub fn latest<'a, V>(
        equal: impl IntoIterator<Item = (&'a str, V)>,
        one_in: u32,
        at_most_per_s: Option<u32>,
    ) -> Result<Self, FilterError>
    where
        V: IntoIterator<Item = &'a str>,
    {
        let (mut wanted, mut bytes): (Vec<Equal>, usize) = (Vec::new(), 0);
        for (name, values) in equal {
            if !headers::is_name(name.as_bytes()) {
                return Err(FilterError::BadName);
            }
            if wanted.iter().any(|(known, _)| **known == *name) {
                return Err(FilterError::Repeated);
            }
            if wanted.len() == FILTER_HEADERS_MAX {
                return Err(FilterError::TooManyHeaders);
            }
            let values: Box<[Box<str>]> = values.into_iter().take(FILTER_VALUES_MAX + 1).map(Box::from).collect();
            if values.is_empty() || values.len() > FILTER_VALUES_MAX {
                return Err(FilterError::BadValues);
            }
            bytes += 2 + name.len() + values.iter().map(|value| 2 + value.len()).sum::<usize>();
            if bytes > FILTER_BYTES_MAX {
                return Err(FilterError::TooLong);
            }
            wanted.push((name.into(), values));
        }
        match one_in {
            1..=ONE_IN_MAX => {}
            _ => return Err(FilterError::BadSample),
        }
        let at_most_per_s = match at_most_per_s {
            None => 0,
            Some(rate @ 1..=PER_S_MAX) => rate as u16,
            Some(_) => return Err(FilterError::BadRate),
        };
        if wanted.is_empty() && one_in == 1 && at_most_per_s == 0 {
            return Err(FilterError::Empty);
        }
        Ok(Filter {
            equal: wanted.into(),
            one_in,
            at_most_per_s,
        })
    }

    /// Its headers, each with the values that are wanted of it.
    pub fn equal(&self) -> impl Iterator<Item = (&str, impl Iterator<Item = &str>)> {
        let all = self.equal.iter();
        all.map(|(name, values)| (&**name, values.iter().map(|value| &**value)))
    }

    /// It takes one message in as many.
    pub fn one_in(&self) -> u32 {
        self.one_in
    }

    /// At most as many messages a second are wanted, if there is a limit.
    pub fn at_most_per_s(&self) -> Option<u32> {
        (self.at_most_per_s > 0).then(|| self.at_most_per_s.into())
    }

    /// The least time between two messages, if there is one.
    pub fn period(&self) -> Option<Micros> {
        self.at_most_per_s()
            .map(|rate| Micros::from(1_000_000u32.div_ceil(rate)))
    }

    /// Whether a message is wanted: by its publisher, the sequence of its first chunk, and its headers if it has some.
    pub fn lets(&self, publisher: PublisherId, sequence: u64, block: Option<&[u8]>) -> bool {
        if self.one_in > 1 && spread(publisher, sequence) % u64::from(self.one_in) != 0 {
            return false;
        }
        self.equal.iter().all(|(name, values)| {
            let value = headers::decode(block.unwrap_or_default()).find(|(known, _)| *known == &**name);
            value.is_some_and(|(_, value)| values.iter().any(|wanted| **wanted == *value))
        })
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (one_in, rate) = (reader.u32()?, reader.u16()?);
        let mut equal = Vec::new();
        for _ in 0..reader.u8()? {
            let len = usize::from(reader.u8()?);
            let name = std::str::from_utf8(reader.take(len)?).ok()?;
            let mut values = Vec::new();
            for _ in 0..reader.u8()? {
                values.push(std::str::from_utf8(reader.bytes16()?).ok()?);
            }
            equal.push((name, values));
        }
        Filter::latest(equal, one_in, (rate > 0).then(|| rate.into())).ok()
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
        writer
            .u32(self.one_in)
            .u16(self.at_most_per_s)
            .u8(self.equal.len() as u8);
        for (name, values) in &self.equal {
            writer.u8(name.len() as u8).put(name.as_bytes()).u8(values.len() as u8);
            for value in values {
                writer.bytes16(value.as_bytes());
            }
        }
    }
}

/// A number that is the same for the same message alone: samples take equal shares of all publishers, whatever the number of
/// chunks that their messages have.
fn spread(publisher: PublisherId, sequence: u64) -> u64 {
    let mixed = |number: u64| Dice::new(number).roll();
    mixed(mixed(mixed(publisher.user) ^ publisher.incarnation) ^ sequence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PUBLISHER: PublisherId = PublisherId {
        user: 7,
        incarnation: 9,
    };

    #[test]
    fn each_bound_of_a_filter_is_refused_by_its_own_error() {
        let none: [(&str, [&str; 1]); 0] = [];
        assert_eq!(Filter::new(none, 1), Err(FilterError::Empty));
        assert_eq!(Filter::new(none, 0), Err(FilterError::BadSample));
        assert_eq!(Filter::new(none, ONE_IN_MAX + 1), Err(FilterError::BadSample));
        assert!(Filter::new(none, ONE_IN_MAX).is_ok());
        for (rate, period) in [(1, 1_000_000), (3, 333_334), (PER_S_MAX, 1_000)] {
            let filter = Filter::latest(none, 1, Some(rate)).unwrap();
            assert_eq!((filter.at_most_per_s(), filter.period()), (Some(rate), Some(period)));
        }
        for rate in [0, PER_S_MAX + 1] {
            assert_eq!(Filter::latest(none, 1, Some(rate)), Err(FilterError::BadRate));
        }
        let names = ["a", "b", "c", "d", "e"].map(|name| (name, ["x"]));
        assert!(Filter::new(names[..FILTER_HEADERS_MAX].iter().copied(), 1).is_ok());
        assert_eq!(Filter::new(names, 1), Err(FilterError::TooManyHeaders));
        assert_eq!(Filter::new([("a", ["x"]), ("a", ["y"])], 1), Err(FilterError::Repeated));
        assert_eq!(Filter::new([("a b", ["x"])], 1), Err(FilterError::BadName));
        assert_eq!(Filter::new([("a", [""; 0])], 1), Err(FilterError::BadValues));
        assert!(Filter::new([("a", [""; FILTER_VALUES_MAX])], 1).is_ok());
        assert_eq!(
            Filter::new([("a", [""; FILTER_VALUES_MAX + 1])], 1),
            Err(FilterError::BadValues)
        );
        let longest = "v".repeat(FILTER_BYTES_MAX - 5);
        assert!(Filter::new([("a", [longest.as_str()])], 1).is_ok());
        assert_eq!(Filter::new([("ab", [longest.as_str()])], 1), Err(FilterError::TooLong));
    }

    #[test]
    fn headers_are_all_wanted_and_values_are_alternatives() {
        let filter = Filter::new([("pair", vec!["EUR", "USD"]), ("kind", vec!["trade"])], 1).unwrap();
        let block = |headers: &[(&str, &str)]| headers::encode(headers.iter().copied()).unwrap();
        let lets = |headers: &[(&str, &str)]| filter.lets(PUBLISHER, 7, Some(&block(headers)));
        assert!(lets(&[("kind", "trade"), ("more", ""), ("pair", "USD")]));
        assert!(!lets(&[("kind", "trade"), ("pair", "JPY")]));
        assert!(!lets(&[("pair", "EUR")]));
        assert!(!filter.lets(PUBLISHER, 7, None), "a message without headers");
        let sample = Filter::new([("pair", ["EUR"])], 3).unwrap();
        let euro = block(&[("pair", "EUR")]);
        let lets = |sequence: &u64| sample.lets(PUBLISHER, *sequence, Some(&euro));
        let taken: Vec<u64> = (1..20).filter(lets).collect();
        assert_eq!(taken, [6, 9, 10, 11, 14]);
        assert!((1..20).all(|sequence| !sample.lets(PUBLISHER, sequence, None)));
    }

    #[test]
    fn a_sample_takes_its_share_of_each_publisher_and_of_messages_with_any_number_of_chunks() {
        let none: [(&str, [&str; 1]); 0] = [];
        let sample = Filter::new(none, 10).unwrap();
        for (user, chunks) in [(1, 1), (2, 2), (3, 5), (4, 10)] {
            let publisher = PublisherId { user, incarnation: 3 };
            let sequences = (0..10_000).map(|message| 1 + message * chunks);
            let taken = sequences
                .filter(|sequence| sample.lets(publisher, *sequence, None))
                .count();
            assert!((880..1_120).contains(&taken), "{taken} of user {user}"); // four standard deviations
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_filter_that_differs_from_what_it_writes(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut reader = Reader::new(&bytes);
            if let Some(filter) = Filter::read(&mut reader) {
                let read = bytes.len() - reader.rest().len();
                let mut again = [0; 1_024];
                let mut writer = Writer::new(&mut again);
                filter.write(&mut writer);
                prop_assert_eq!(writer.written().to_vec(), bytes[..read].to_vec());
            }
        }

        #[test]
        fn a_filter_survives_the_wire(
            equal in prop::collection::btree_map("[a-z]{1,9}", prop::collection::vec(".{0,8}", 1..4), 0..4),
            one_in in 2..=ONE_IN_MAX,
            rate in prop::option::of(1..=PER_S_MAX),
        ) {
            let all = equal.iter().map(|(name, values)| (name.as_str(), values.iter().map(String::as_str)));
            let filter = Filter::latest(all, one_in, rate).unwrap();
            let mut bytes = [0; 1_024];
            let mut writer = Writer::new(&mut bytes);
            filter.write(&mut writer);
            prop_assert_eq!(Filter::read(&mut Reader::new(writer.written())), Some(filter));
        }
    }
}
