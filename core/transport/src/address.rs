//! Bounded accounts: bytes that may be sent to an unproven address, handshakes per network, and actions per key.
//!
//! Owns: [`Unproven`], [`PrefixBuckets`], [`Buckets`], [`Bucket`]. Must not know: the meaning of the bytes, sessions,
//! cipher keys, sockets.

use std::hash::{BuildHasher, Hash};

use crate::hash::KeyedState;
use crate::machine::{Addr, Micros};

/// Maximum number of unproven addresses held at once: 4,096 x 56 B = 224 KiB per process.
pub const UNPROVEN_MAX: usize = 4_096;

/// Lifetime of an unproven address's account: twice the longest handshake.
pub const UNPROVEN_LIFE: Micros = 10_000_000;

/// Bytes that may be sent to an unproven address for each byte received from it (RFC 9000, 8.1).
pub const AMPLIFICATION_MAX: u64 = 3;

/// Maximum number of prefixes with a bucket at once: 4,096 x 32 B = 128 KiB per process.
pub const PREFIXES_MAX: usize = 4_096;

/// Bytes received from and sent to each address that has not yet proven that it receives. Handshake replies, cookies,
/// resets and path checks share this table, so their allowances do not add up.
pub struct Unproven {
    accounts: Ways<Addr, Account>,
}

impl Unproven {
    /// A table of at most `max` addresses, [`UNPROVEN_MAX`] by default.
    pub fn new(max: usize, hash: KeyedState) -> Self {
        Unproven {
            accounts: Ways::new(max, hash),
        }
    }

    /// Notes `n` bytes from `addr`. `false`: the table is full, and [`Unproven::may_send`] will grant nothing for
    /// these bytes.
    pub fn received(&mut self, now: Micros, addr: Addr, n: usize) -> bool {
        let fresh = Account {
            opened: now,
            received: 0,
            sent: 0,
        };
        let account = self.accounts.entry(addr, |account| account.is_stale(now), fresh);
        account
            .map(|account| account.received = account.received.saturating_add(n as u64))
            .is_some()
    }

    /// Closes the account of an address that has proven that it receives, and frees its entry.
    pub fn proven(&mut self, addr: Addr) {
        self.accounts.remove(&addr);
    }

    /// Whether `n` bytes may be sent to `addr`; if so, charges them. An address without an account gets nothing.
    pub fn may_send(&mut self, now: Micros, addr: Addr, n: usize) -> bool {
        let Some(account) = self.accounts.get(&addr).filter(|account| !account.is_stale(now)) else {
            return false;
        };
        let sent = account.sent.saturating_add(n as u64);
        let granted = sent <= account.received.saturating_mul(AMPLIFICATION_MAX);
        if granted {
            account.sent = sent;
        }
        granted
    }

    /// As [`Unproven::may_send`], for a reply of `n` bytes to `received` bytes that were noted already. It still
    /// works when spoofed addresses have filled the table: without an account, a reply may be sent if it is no longer
    /// than the request. Otherwise 400 spoofed datagrams a second would keep cookies from all clients.
    pub fn may_reply(&mut self, now: Micros, addr: Addr, received: usize, n: usize) -> bool {
        match self.accounts.get(&addr).is_some_and(|account| !account.is_stale(now)) {
            true => self.may_send(now, addr, n),
            false => n <= received,
        }
    }

    /// Notes `received` bytes and charges the reply of `n` bytes to them.
    pub fn may_answer(&mut self, now: Micros, addr: Addr, received: usize, n: usize) -> bool {
        self.received(now, addr, received);
        self.may_reply(now, addr, received, n)
    }
}

/// A token bucket for each network: a /24 of IPv4 or a /56 of IPv6, the usual size for one customer.
pub struct PrefixBuckets {
    buckets: Buckets<u64>,
}

impl PrefixBuckets {
    /// A table of at most `max` prefixes, [`PREFIXES_MAX`] by default, each with `rate` tokens a second up to `burst`.
    pub fn new(max: usize, rate: u32, burst: u32, hash: KeyedState) -> Self {
        PrefixBuckets {
            buckets: Buckets::new(max, rate, burst, hash),
        }
    }

    /// Sets each network's tokens per second; existing debts stay.
    pub fn set_rate(&mut self, rate: u32, burst: u32) {
        self.buckets.set_rate(rate, burst);
    }

    /// Takes one token of the address's network. Also returns `false` when the table is full of networks that still
    /// have debts.
    pub fn take(&mut self, now: Micros, addr: Addr) -> bool {
        self.buckets.take(now, prefix(addr)) == Taken::Yes
    }
}

/// The outcome of taking a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Yes,
    /// A token will be available after this time.
    Wait(Micros),
    /// The table is full of other keys that still have debts.
    Full,
}

/// A token bucket for each key, in a table of fixed size. A full bucket equals a new one, so its entry may be reused.
pub struct Buckets<K> {
    buckets: Ways<K, Bucket>,
    full: Bucket,
}

impl<K: Copy + Eq + Hash> Buckets<K> {
    /// A table of at most `max` keys, each with `rate` tokens a second up to `burst`.
    pub fn new(max: usize, rate: u32, burst: u32, hash: KeyedState) -> Self {
        Buckets {
            buckets: Ways::new(max, hash),
            full: Bucket::new(rate, burst),
        }
    }

    /// Sets each key's tokens per second; existing debts stay.
    pub fn set_rate(&mut self, rate: u32, burst: u32) {
        self.full = Bucket::new(rate, burst);
    }

    /// Takes one token of the key.
    pub fn take(&mut self, now: Micros, key: K) -> Taken {
        let Some(bucket) = self.buckets.entry(key, |bucket| bucket.is_full(now), self.full) else {
            return Taken::Full;
        };
        bucket.rate = self.full.rate;
        match bucket.take(now, 1) {
            true => Taken::Yes,
            false => Taken::Wait(bucket.wait(now)),
        }
    }
}

/// Tokens per second, and the largest burst. A rate of 0 gives nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    pub a_second: u32,
    pub burst: u32,
}

impl Rate {
    /// Time in which `n` tokens accrue, rounded down so that a whole burst fits however it is split.
    fn nanos(&self, n: u32) -> Option<u64> {
        (u64::from(n) * 1_000_000_000).checked_div(self.a_second.into())
    }
}

/// One holder's debt to a [`Rate`], in 8 bytes; many holders share a rate. A new holder owes nothing.
///
/// Stores the time at which the debt is paid off (GCRA) instead of a token count and a time. Exact to a nanosecond
/// per call: at a million calls a second it may give up to 0.1 % more than its rate.
#[derive(Clone, Copy, Default, Debug)]
pub struct Debt {
    paid_at_ns: u64,
}

impl Debt {
    /// Takes `n` tokens, all or none. After the clock steps back, it refuses until the clock has caught up.
    pub fn take(&mut self, now: Micros, rate: Rate, n: u32) -> bool {
        if n == 0 {
            return true;
        }
        let (Some(cost), Some(burst)) = (rate.nanos(n), rate.nanos(rate.burst)) else {
            return false;
        };
        let now_ns = now.saturating_mul(1_000);
        let Some(paid_at_ns) = self.paid_at_ns.max(now_ns).checked_add(cost.max(1)) else {
            return false;
        };
        let granted = n <= rate.burst && paid_at_ns - now_ns <= burst;
        if granted {
            self.paid_at_ns = paid_at_ns;
        }
        granted
    }
}

/// A token bucket with a rate of its own, in 16 bytes. Starts full.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    debt: Debt,
    rate: Rate,
}

impl Bucket {
    pub fn new(rate: u32, burst: u32) -> Self {
        Bucket {
            debt: Debt::default(),
            rate: Rate { a_second: rate, burst },
        }
    }

    /// Takes `n` tokens, all or none, as [`Debt::take`].
    pub fn take(&mut self, now: Micros, n: u32) -> bool {
        self.debt.take(now, self.rate, n)
    }

    /// Sets the tokens per second and the largest burst; the debt stays.
    pub fn set_rate(&mut self, rate: u32, burst: u32) {
        self.rate = Rate { a_second: rate, burst };
    }

    /// Takes `n` tokens even if they are not available yet, as a debt. For a caller that then waits until it is paid.
    pub fn owe(&mut self, now: Micros, n: u32) {
        if n > 0 {
            let from_ns = self.debt.paid_at_ns.max(now.saturating_mul(1_000));
            self.debt.paid_at_ns = from_ns.saturating_add(self.rate.nanos(n).unwrap_or(u64::MAX).max(1));
        }
    }

    /// The time until one token is available, if no other is taken meanwhile; [`Micros::MAX`] if the rate is 0.
    pub fn wait(&self, now: Micros) -> Micros {
        let (Some(cost), Some(burst)) = (self.rate.nanos(1), self.rate.nanos(self.rate.burst)) else {
            return Micros::MAX;
        };
        let from_ns = self.debt.paid_at_ns.saturating_add(cost.max(1)).saturating_sub(burst);
        from_ns.div_ceil(1_000).saturating_sub(now)
    }

    /// Whether the bucket has no debt, so that it equals a new one.
    pub fn is_full(&self, now: Micros) -> bool {
        self.debt.paid_at_ns <= now.saturating_mul(1_000)
    }
}

#[derive(Clone, Copy)]
struct Account {
    opened: Micros,
    received: u64,
    sent: u64,
}

impl Account {
    /// Life counts from the first datagram and not the last, so that steady noise cannot keep an entry forever.
    fn is_stale(&self, now: Micros) -> bool {
        now.saturating_sub(self.opened) >= UNPROVEN_LIFE
    }
}

/// The network of an address. It includes the address family, so an IPv4 prefix never equals an IPv6 one.
fn prefix(addr: Addr) -> u64 {
    const V4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let (family, prefix) = match addr.ip.strip_prefix(&V4_MAPPED) {
        Some(v4) => (4, &v4[..3]),
        None => (6, &addr.ip[..7]),
    };
    prefix.iter().fold(family, |sum, &byte| sum << 8 | u64::from(byte))
}

/// A hash table of fixed size in sets of [`WAYS`] entries. A look-up touches one set, and entries never move. A
/// stranger without the hash key cannot choose which set it fills.
struct Ways<K, V> {
    entries: Vec<Option<(K, V)>>,
    hash: KeyedState,
}

/// Chosen so that a table in random use is two thirds full before a set overflows.
const WAYS: usize = 16;

impl<K: Copy + Eq + Hash, V: Copy> Ways<K, V> {
    fn new(max: usize, hash: KeyedState) -> Self {
        let sets = (max / WAYS).max(1);
        Ways {
            entries: vec![None; sets * WAYS],
            hash,
        }
    }

    fn set(&mut self, key: &K) -> &mut [Option<(K, V)>] {
        let sets = self.entries.len() / WAYS;
        let start = (self.hash.hash_one(key) % sets as u64) as usize * WAYS;
        &mut self.entries[start..start + WAYS]
    }

    fn get(&mut self, key: &K) -> Option<&mut V> {
        self.set(key)
            .iter_mut()
            .flatten()
            .find(|(found, _)| found == key)
            .map(|(_, value)| value)
    }

    fn remove(&mut self, key: &K) {
        let place = self
            .set(key)
            .iter_mut()
            .find(|entry| entry.is_some_and(|(found, _)| found == *key));
        if let Some(entry) = place {
            *entry = None;
        }
    }

    /// The key's value; or `fresh` in its own stale entry, a free one or another key's stale one; `None` if the set
    /// is full.
    fn entry(&mut self, key: K, stale: impl Fn(&V) -> bool, fresh: V) -> Option<&mut V> {
        let set = self.set(&key);
        let own = set
            .iter()
            .position(|entry| entry.is_some_and(|(found, _)| found == key));
        let free = || {
            set.iter()
                .position(|entry| entry.is_none_or(|(_, value)| stale(&value)))
        };
        let place = &mut set[own.or_else(free)?];
        let kept = place.filter(|(found, value)| *found == key && !stale(value));
        Some(&mut place.insert(kept.unwrap_or((key, fresh))).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const HASH: (u64, u64) = (1, 2);
    const SECOND: Micros = 1_000_000;

    fn hash() -> KeyedState {
        KeyedState::new(HASH.0, HASH.1)
    }

    fn v4(host: u32) -> Addr {
        let mut ip = [0; 16];
        ip[10..12].fill(0xff);
        ip[12..].copy_from_slice(&host.to_be_bytes());
        Addr { ip, port: 1 }
    }

    #[test]
    fn an_unproven_address_gets_three_times_the_bytes_it_sent() {
        let mut unproven = Unproven::new(UNPROVEN_MAX, hash());
        assert!(!unproven.may_send(0, v4(1), 1), "nothing came yet");
        assert!(unproven.received(0, v4(1), 100));
        assert!(!unproven.may_send(0, v4(1), 301));
        assert!(unproven.may_send(0, v4(1), 200));
        assert!(unproven.may_send(0, v4(1), 100));
        assert!(!unproven.may_send(0, v4(1), 1));
        assert!(
            !unproven.may_send(0, Addr { port: 2, ..v4(1) }, 1),
            "another port is another address"
        );
        assert!(unproven.received(1, v4(1), 1));
        assert!(unproven.may_send(1, v4(1), 3));
    }

    #[test]
    fn a_new_rate_applies_to_networks_with_a_bucket() {
        let mut prefixes = PrefixBuckets::new(PREFIXES_MAX, 1, 2, hash());
        let taken = |prefixes: &mut PrefixBuckets, now| (0..10).filter(|_| prefixes.take(now, v4(1))).count();
        assert_eq!(taken(&mut prefixes, 0), 2);
        prefixes.set_rate(1_000, 5);
        assert_eq!(taken(&mut prefixes, 0), 0, "what it owes stays");
        assert_eq!(taken(&mut prefixes, 2 * SECOND), 5);
        prefixes.set_rate(1, 1);
        assert_eq!(taken(&mut prefixes, 4 * SECOND), 1);
    }

    #[test]
    fn proven_addresses_free_their_entries() {
        let mut unproven = Unproven::new(UNPROVEN_MAX, hash());
        for host in 0..10 * UNPROVEN_MAX as u32 {
            assert!(unproven.received(0, v4(host), 1));
            assert!(unproven.may_send(0, v4(host), 1));
            unproven.proven(v4(host));
            assert!(!unproven.may_send(0, v4(host), 1), "nothing is left of the account");
        }
    }

    #[test]
    fn an_account_expires_and_restarts() {
        let mut unproven = Unproven::new(UNPROVEN_MAX, hash());
        assert!(unproven.received(5, v4(1), 100));
        assert!(unproven.may_send(4 + UNPROVEN_LIFE, v4(1), 10));
        assert!(!unproven.may_send(5 + UNPROVEN_LIFE, v4(1), 10));
        assert!(unproven.received(5 + UNPROVEN_LIFE, v4(1), 1));
        assert!(!unproven.may_send(5 + UNPROVEN_LIFE, v4(1), 4));
    }

    #[test]
    fn a_full_table_still_allows_replies_shorter_than_their_requests() {
        let mut unproven = Unproven::new(64, hash());
        let taken = (0..1_000).filter(|&host| unproven.received(0, v4(host), 1_200)).count();
        assert!((32..=64).contains(&taken), "{taken} accounts");
        let refused = (0..1_000)
            .map(v4)
            .find(|&addr| !unproven.may_send(0, addr, 1))
            .expect("most were refused");
        assert!(unproven.may_answer(0, refused, 1_200, 60));
        assert!(unproven.may_answer(0, refused, 1_200, 1_200));
        assert!(!unproven.may_answer(0, refused, 1_200, 1_201));
        assert!(unproven.received(UNPROVEN_LIFE, refused, 1), "stale accounts give way");
    }

    #[test]
    fn a_half_full_table_refuses_nothing() {
        let mut unproven = Unproven::new(UNPROVEN_MAX, hash());
        assert!((0..UNPROVEN_MAX as u32 / 2).all(|host| unproven.received(0, v4(host), 1)));
    }

    proptest! {
        #[test]
        fn no_order_of_events_exceeds_the_amplification_limit(
            max in 1usize..40,
            steps in prop::collection::vec((0u32..60, 0u8..3, 0usize..1_500, 0u64..2 * SECOND), 1..400),
        ) {
            let mut unproven = Unproven::new(max, hash());
            let places = unproven.accounts.entries.len();
            let (mut received, mut sent) = (HashMap::new(), HashMap::new());
            let mut now = 0;
            for (host, action, n, wait) in steps {
                now += wait;
                let granted = match action {
                    0 => {
                        unproven.received(now, v4(host), n);
                        *received.entry(host).or_insert(0) += n;
                        false
                    }
                    1 => unproven.may_send(now, v4(host), n),
                    _ => {
                        *received.entry(host).or_insert(0) += n / 2;
                        unproven.may_answer(now, v4(host), n / 2, n)
                    }
                };
                if granted {
                    *sent.entry(host).or_insert(0) += n;
                }
                let (received, sent) = (received.get(&host).unwrap_or(&0), sent.get(&host).unwrap_or(&0));
                prop_assert!(*sent <= 3 * received, "{} B for {} B", sent, received);
                prop_assert_eq!(unproven.accounts.entries.len(), places);
            }
        }

        #[test]
        fn a_bucket_gives_its_burst_and_its_rate_and_no_more(
            rate in 1u32..1_000_000,
            burst in 1u32..100_000,
            takes in prop::collection::vec((0u64..3 * SECOND, 1u32..1_000), 1..200),
        ) {
            // The reference counts tokens in millionths, exactly.
            let (rate_micro, burst_micro) = (u128::from(rate), u128::from(burst) * 1_000_000);
            let (mut bucket, mut tokens, mut now) = (Bucket::new(rate, burst), burst_micro, 0);
            for (wait, n) in takes {
                now += wait;
                tokens = burst_micro.min(tokens + u128::from(wait) * rate_micro);
                let cost = u128::from(n) * 1_000_000;
                // Each call may be a nanosecond off, which is `rate` thousandths of a millionth of a token.
                let slack = 200 * (rate_micro / 1_000 + 1);
                if bucket.take(now, n) {
                    prop_assert!(cost <= tokens + slack, "gave {} of {} millionths", cost, tokens);
                    tokens = tokens.saturating_sub(cost);
                } else {
                    prop_assert!(cost + slack > tokens, "refused {} of {} millionths", cost, tokens);
                }
            }
        }

        #[test]
        fn a_token_is_available_exactly_after_the_announced_wait(
            rate in 1u32..100_000,
            burst in 1u32..1_000,
            taken in 1u32..2_000,
        ) {
            let mut bucket = Bucket::new(rate, burst);
            (0..taken).for_each(|_| { bucket.take(SECOND, 1); });
            let wait = bucket.wait(SECOND);
            prop_assert_eq!(wait == 0, bucket.clone().take(SECOND, 1));
            prop_assert!(wait == 0 || !bucket.clone().take(SECOND + wait - 1, 1));
            prop_assert!(bucket.take(SECOND + wait, 1));
        }

        #[test]
        fn a_bucket_takes_any_numbers_without_overflow(
            rate: u32,
            burst: u32,
            takes in prop::collection::vec((any::<u64>(), any::<u32>()), 1..50),
        ) {
            let mut bucket = Bucket::new(rate, burst);
            for (now, n) in takes {
                let granted = bucket.take(now, n);
                prop_assert!(!granted || n <= burst);
                bucket.is_full(now);
            }
        }
    }

    #[test]
    fn a_whole_burst_fits_whatever_the_rate() {
        for rate in [1, 3, 7, 1_000, 999_983] {
            let mut bucket = Bucket::new(rate, 10);
            assert!((0..10).all(|_| bucket.take(0, 1)), "rate {rate}");
            assert!(!bucket.take(0, 1));
            assert!(bucket.take(SECOND, 1));
        }
    }

    #[test]
    fn entries_have_the_sizes_that_the_limits_assume() {
        assert_eq!(std::mem::size_of::<Option<(Addr, Account)>>(), 56);
        assert_eq!(std::mem::size_of::<Option<(u64, Bucket)>>(), 32);
    }

    #[test]
    fn a_bucket_is_16_bytes_and_without_a_rate_gives_nothing() {
        assert_eq!(std::mem::size_of::<Bucket>(), 16);
        assert!(!Bucket::new(0, 10).take(SECOND, 1));
        assert!(Bucket::new(0, 10).take(SECOND, 0));
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing_extra() {
        let mut bucket = Bucket::new(1, 1);
        assert!(bucket.take(10 * SECOND, 1));
        assert!(!bucket.take(5 * SECOND, 1));
        assert!(!bucket.take(10 * SECOND, 1));
        assert!(bucket.take(11 * SECOND, 1));
    }

    #[test]
    fn hosts_of_one_network_share_a_bucket() {
        let mut buckets = PrefixBuckets::new(PREFIXES_MAX, 1, 2, hash());
        assert!(buckets.take(0, v4(0x0a00_0001)));
        assert!(buckets.take(
            0,
            Addr {
                port: 99,
                ..v4(0x0a00_00ff)
            }
        ));
        assert!(!buckets.take(0, v4(0x0a00_0003)));
        assert!(buckets.take(0, v4(0x0a00_0103)), "the next /24");
        assert!(buckets.take(SECOND, v4(0x0a00_0003)));

        let v6 = |last: u8, host: u8| Addr {
            ip: [0x20, 1, 0xd, 0xb8, 0, 0, last, host, 0, 0, 0, 0, 0, 0, 0, host],
            port: 1,
        };
        assert!(buckets.take(0, v6(1, 1)) && buckets.take(0, v6(1, 2)));
        assert!(!buckets.take(0, v6(1, 3)));
        assert!(buckets.take(0, v6(2, 1)), "the next /56");
    }

    #[test]
    fn prefix_table_stays_bounded_and_reuses_entries_of_full_buckets() {
        let mut buckets = PrefixBuckets::new(64, 1, 1, hash());
        let admitted = (0..10_000u32).filter(|&net| buckets.take(0, v4(net << 8))).count();
        assert!((32..=64).contains(&admitted), "{admitted} networks");
        assert_eq!(buckets.buckets.buckets.entries.len(), 64);
        assert!(buckets.take(SECOND, v4(20_000 << 8)));
    }
}
