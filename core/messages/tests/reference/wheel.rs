//! The wheel as a plain list.

#[derive(Clone, Debug)]
pub struct Entry {
    pub due: u64,
    pub key: u64,
    /// It was already due when it got this due time: it may fire after entries with a later one.
    pub overdue: bool,
}

#[derive(Default)]
pub struct Wheel {
    pub now: u64,
    pub entries: Vec<Entry>,
}

impl Wheel {
    pub fn insert(&mut self, due: u64, key: u64) {
        let overdue = due <= self.now;
        self.entries.push(Entry { due, key, overdue });
    }

    pub fn cancel(&mut self, key: u64) -> Option<u64> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.remove(at).due)
    }

    pub fn reschedule(&mut self, key: u64, due: u64) -> bool {
        let known = self.cancel(key).is_some();
        if known {
            self.insert(due, key);
        }
        known
    }

    /// Entries due by `now`, by due time.
    pub fn advance(&mut self, now: u64) -> Vec<Entry> {
        self.now = self.now.max(now);
        let (mut due, rest): (Vec<Entry>, Vec<Entry>) = self.entries.drain(..).partition(|entry| entry.due <= now);
        self.entries = rest;
        due.sort_by_key(|entry| entry.due);
        due
    }
}
