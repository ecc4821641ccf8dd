//! Reads and writes little-endian fields in byte slices. Knows no frame.
//!
//! Nothing here panics on foreign bytes: a short slice gives `None`.

/// The largest offset, place, sequence or version that is accepted: at a million a second, 146,000 years.
pub const NUMBER_MAX: u64 = 1 << 62;

/// A cursor over received bytes.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        if len > self.bytes.len() {
            return None;
        }
        let (head, tail) = self.bytes.split_at(len);
        self.bytes = tail;
        Some(head)
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N).and_then(|bytes| bytes.try_into().ok())
    }

    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An offset, place, sequence or version. Honest nodes never count to [`NUMBER_MAX`]; higher numbers are refused,
    /// since they would overflow arithmetic.
    #[inline]
    pub fn number(&mut self) -> Option<u64> {
        self.u64().filter(|number| *number <= NUMBER_MAX)
    }

    /// A [`Reader::number`], or `u64::MAX` where that means "without end".
    #[inline]
    pub fn number_or_open(&mut self) -> Option<u64> {
        self.u64().filter(|number| *number <= NUMBER_MAX || *number == u64::MAX)
    }

    /// A byte string with a 16-bit length prefix.
    #[inline]
    pub fn bytes16(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()? as usize;
        self.take(len)
    }
}

/// Appends fields to a fixed slice. A field that does not fit is not written at all: check [`Writer::room`] first or
/// read [`Writer::full`] afterwards.
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
    full: bool,
}

impl<'a> Writer<'a> {
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Writer {
            bytes,
            len: 0,
            full: false,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn room(&self) -> usize {
        self.bytes.len() - self.len
    }

    /// Whether a field did not fit since the last [`Writer::truncate`].
    pub fn full(&self) -> bool {
        self.full
    }

    /// Goes back to an earlier length and clears [`Writer::full`].
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.full = false;
    }

    /// The unwritten rest, for a callee that fills it; then call [`Writer::advance`] with the number of bytes
    /// written.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.len..]
    }

    pub fn advance(&mut self, len: usize) {
        self.len += len.min(self.room());
    }

    pub fn written(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        match self.bytes.get_mut(self.len..self.len + bytes.len()) {
            Some(space) => {
                space.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.full = true,
        }
        self
    }

    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    #[inline]
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// A byte string of at most 65,535 bytes with a 16-bit length prefix.
    pub fn bytes16(&mut self, bytes: &[u8]) -> &mut Self {
        match u16::try_from(bytes.len()) {
            Ok(len) => self.u16(len).put(bytes),
            Err(_) => {
                self.full = true;
                self
            }
        }
    }

    /// Overwrites two bytes at `at`, which must be written already.
    pub fn patch_u16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
}
