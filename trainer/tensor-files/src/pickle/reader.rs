//! Reads a pickle byte by byte.

/// The longest name of a module or of what is in it.
const NAME: usize = 256;

/// The rest of a pickle.
pub(super) struct Reader<'a> {
    whole: usize,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the first byte on.
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { whole: bytes.len(), rest: bytes }
    }

    /// The position of the next byte.
    pub(super) fn at(&self) -> usize {
        self.whole - self.rest.len()
    }

    /// The next `count` bytes.
    #[inline]
    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let parts = usize::try_from(count).ok().and_then(|count| self.rest.split_at_checked(count));
        let (taken, rest) = parts.ok_or_else(|| self.early())?;
        self.rest = rest;
        Ok(taken)
    }

    fn early(&self) -> String {
        format!("ends early: at byte {} of its pickle", self.whole)
    }

    /// The next byte.
    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, String> {
        Ok(self.take(1)?[0])
    }

    /// The next number, of `size` bytes in little-endian order.
    #[inline]
    pub(super) fn number(&mut self, size: u64) -> Result<u64, String> {
        Ok(self.take(size)?.iter().rev().fold(0, |sum, digit| sum << 8 | u64::from(*digit)))
    }

    /// The next signed number, after its length in bytes; `None` if it has more than 64 bits.
    pub(super) fn long(&mut self) -> Result<Option<i64>, String> {
        let length = self.number(1)?;
        let digits = self.take(length)?;
        let negative = digits.last().is_some_and(|highest| *highest >= 0x80);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        let Some(low) = whole.get_mut(..digits.len()) else { return Ok(None) };
        low.copy_from_slice(digits);
        Ok(Some(i64::from_le_bytes(whole)))
    }

    /// The next text, after its length in `size` bytes; `None` if it is not UTF-8, as a path need not be.
    pub(super) fn text(&mut self, size: u64) -> Result<Option<&'a str>, String> {
        Ok(std::str::from_utf8(self.bytes(size)?).ok())
    }

    /// The next bytes, after their length in `size` bytes.
    pub(super) fn bytes(&mut self, size: u64) -> Result<&'a [u8], String> {
        let length = self.number(size)?;
        self.take(length)
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> Result<&'a str, String> {
        let at = self.at();
        let long = || format!("has no name at byte {at} of its pickle, where one should be");
        let line = match self.rest.iter().take(NAME).position(|byte| *byte == b'\n') {
            Some(length) => self.take(length as u64)?,
            None if self.rest.len() < NAME => return Err(self.early()),
            None => return Err(long()),
        };
        self.take(1)?;
        std::str::from_utf8(line).map_err(|_| long())
    }

    /// Checks the number of the protocol that follows.
    pub(super) fn protocol(&mut self) -> Result<(), String> {
        match self.byte()? {
            2..=5 => Ok(()),
            other => Err(format!("has a pickle of protocol {other}; protocols 2 to 5 are read")),
        }
    }
}
