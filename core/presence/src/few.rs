//! Lists that nearly always have one entry.
//!
//! Owns [`Few`]: the first entry is stored inline, so a single one needs no allocation. Knows no entry.

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Few<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Few {
            first: None,
            rest: Vec::new(),
        }
    }
}

impl<T> Few<T> {
    pub fn push(&mut self, entry: T) {
        match self.first {
            None => self.first = Some(entry),
            Some(_) => self.rest.push(entry),
        }
    }

    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Keeps those of which `keep` is true, in their order.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.rest.retain(&mut keep);
        if self.first.as_ref().is_some_and(|first| !keep(first)) {
            self.first = (!self.rest.is_empty()).then(|| self.rest.remove(0));
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut entries = entries.into_iter();
        Few {
            first: entries.next(),
            rest: entries.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_behaves_like_a_list(entries in prop::collection::vec(0u8..9, 0..6), more in 0u8..9, least in 0u8..9) {
            let (mut few, mut list): (Few<u8>, Vec<u8>) = (entries.iter().copied().collect(), entries);
            prop_assert_eq!((few.len(), few.is_empty()), (list.len(), list.is_empty()));
            few.push(more);
            list.push(more);
            prop_assert_eq!(few.iter().collect::<Vec<_>>(), list.iter().collect::<Vec<_>>());
            few.retain(|entry| *entry >= least);
            list.retain(|entry| *entry >= least);
            few.iter_mut().for_each(|entry| *entry += 1);
            list.iter_mut().for_each(|entry| *entry += 1);
            prop_assert_eq!(few.iter().collect::<Vec<_>>(), list.iter().collect::<Vec<_>>());
        }
    }
}
