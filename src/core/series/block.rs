//! Encoding of samples on disk: a minute of all series, and an hour of one series.
//!
//! Values are written column by column as differences: a series that does not change is then a run
//! of zeros, which deflate compresses to almost nothing. It knows no database and no names: a
//! series is a number here.

use std::{error, fmt, io::Read};

use flate2::{
    Compression,
    bufread::{DeflateDecoder, DeflateEncoder},
};

/// Ticks of one block: an hour at 5 s, three times over.
pub const TICKS_MAX: usize = 2_160;
/// Columns of one block.
pub const COLUMNS_MAX: usize = 4_096;
/// Values of one block: 2,000 series through a minute at 5 s, twenty times over.
const VALUES_MAX: usize = 1 << 19;
/// Maximum unpacked size of a block. Bytes that promise more are not ours.
const UNPACKED_BYTES_MAX: u64 = 4 << 20;
/// The first byte: the form that this program writes.
const FORM: u64 = 1;

/// Values of one series, one for each tick; `None` where there was none.
pub type Column = Vec<Option<i64>>;

/// Ticks of one boot, with the values of the series that were there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Block {
    /// Boot from which `ticks` count: the row of the table of boots.
    pub boot: u32,
    /// Wall clock minus the clock since boot, when the block was closed.
    pub wall_offset_ms: i64,
    /// True if that wall clock could be believed.
    pub clock_is_set: bool,
    /// Milliseconds since boot of each tick.
    pub ticks: Vec<u64>,
    /// The minutes that the ticks came in: sequence of each, and how many of the ticks are its own.
    pub minutes: Vec<(u64, u32)>,
    /// Series and their values. Each has as many as there are ticks.
    pub columns: Vec<(u32, Column)>,
}

/// Reasons why bytes are not a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BlockError {
    /// They cannot be unpacked, end too early, or go on behind the end.
    Damaged,
    /// More ticks, columns or bytes than a block has.
    TooLarge,
    /// A newer program wrote them.
    Newer,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Damaged => "the samples are damaged",
            Self::TooLarge => "there are more samples in one piece than this program writes",
            Self::Newer => "a newer program wrote the samples",
        })
    }
}

impl error::Error for BlockError {}

impl Block {
    /// The wall clock of a tick by this block's offset, in milliseconds.
    pub fn wall_ms(&self, tick: u64) -> i64 {
        i64::try_from(tick)
            .unwrap_or(i64::MAX)
            .saturating_add(self.wall_offset_ms)
    }

    /// The block as bytes. A column that is shorter than the ticks is filled with `None`, a longer
    /// one cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut plain = Vec::new();
        self.put(&mut plain);
        pack(&plain)
    }

    /// Appends the block as it is before it is packed, for whoever packs it together with more.
    pub fn put(&self, plain: &mut Vec<u8>) {
        put(plain, FORM);
        put(plain, u64::from(self.boot));
        put_signed(plain, self.wall_offset_ms);
        put(plain, u64::from(self.clock_is_set));
        put_length(plain, self.ticks.len());
        put_steps(plain, &self.ticks);
        put_length(plain, self.minutes.len());
        let mut before = 0_u64;
        for (sequence, ticks) in &self.minutes {
            put(plain, sequence.wrapping_sub(before));
            put(plain, u64::from(*ticks));
            before = *sequence;
        }
        put_length(plain, self.columns.len());
        let mut before = 0_u32;
        for (series, column) in &self.columns {
            put(plain, u64::from(series.wrapping_sub(before)));
            before = *series;
            put_column(plain, column, self.ticks.len());
        }
    }

    /// Reads what [`Block::encode`] wrote. Any other bytes are an error, and cost no more than 4
    /// MiB.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let plain = unpack(bytes)?;
        let mut rest = plain.as_slice();
        if take(&mut rest)? != FORM {
            return Err(BlockError::Newer);
        }
        let boot = take_u32(&mut rest)?;
        let wall_offset_ms = take_signed(&mut rest)?;
        let clock_is_set = match take(&mut rest)? {
            0 => false,
            1 => true,
            _ => return Err(BlockError::Damaged),
        };
        let ticks = take_steps(&mut rest)?;
        let minutes = take_minutes(&mut rest)?;
        let columns = take_columns(&mut rest, ticks.len())?;
        if !rest.is_empty() {
            return Err(BlockError::Damaged);
        }
        Ok(Self {
            boot,
            wall_offset_ms,
            clock_is_set,
            ticks,
            minutes,
            columns,
        })
    }
}

/// Columns of the same length, as they lie in one row of the database.
pub fn encode_columns(columns: &[Column]) -> Vec<u8> {
    let mut plain = Vec::new();
    for column in columns {
        put_column(&mut plain, column, column.len());
    }
    pack(&plain)
}

/// Reads what [`encode_columns`] wrote: `count` columns of `length` values each.
pub fn decode_columns(
    bytes: &[u8],
    count: usize,
    length: usize,
) -> Result<Vec<Column>, BlockError> {
    if length > TICKS_MAX || count > COLUMNS_MAX {
        return Err(BlockError::TooLarge);
    }
    let plain = unpack(bytes)?;
    let mut rest = plain.as_slice();
    let columns = (0..count)
        .map(|_| take_column(&mut rest, length))
        .collect::<Result<_, _>>()?;
    if !rest.is_empty() {
        return Err(BlockError::Damaged);
    }
    Ok(columns)
}

/// Deflates, as small as it gets.
pub fn pack(plain: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    // Reading from memory and writing into memory cannot fail.
    let done = DeflateEncoder::new(plain, Compression::best()).read_to_end(&mut packed);
    debug_assert!(done.is_ok());
    packed
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, BlockError> {
    let mut decoder = DeflateDecoder::new(packed);
    let mut plain = Vec::new();
    let read = (&mut decoder)
        .take(UNPACKED_BYTES_MAX + 1)
        .read_to_end(&mut plain);
    if read.is_err() {
        return Err(BlockError::Damaged);
    }
    if u64::try_from(plain.len()).is_ok_and(|length| length > UNPACKED_BYTES_MAX) {
        return Err(BlockError::TooLarge);
    }
    if decoder.into_inner().is_empty() {
        Ok(plain)
    } else {
        Err(BlockError::Damaged)
    }
}

/// Appends a number: seven bits a byte, the lowest first; the highest bit says that more follow.
pub fn put(plain: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            plain.push(low);
            return;
        }
        plain.push(low | 0x80);
    }
}

fn take(rest: &mut &[u8]) -> Result<u64, BlockError> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(BlockError::Damaged)?;
        *rest = after;
        let low = u64::from(byte & 0x7f);
        // The tenth byte has one bit only.
        if shift == 63 && low > 1 {
            return Err(BlockError::Damaged);
        }
        number |= low << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(BlockError::Damaged)
}

/// Numbers near zero are short, whatever their sign.
fn put_signed(plain: &mut Vec<u8>, number: i64) {
    put(plain, ((number << 1) ^ (number >> 63)).cast_unsigned());
}

fn take_signed(rest: &mut &[u8]) -> Result<i64, BlockError> {
    let number = take(rest)?;
    Ok((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
}

fn put_length(plain: &mut Vec<u8>, length: usize) {
    put(plain, u64::try_from(length).unwrap_or(u64::MAX));
}

fn take_length(rest: &mut &[u8], max: usize) -> Result<usize, BlockError> {
    usize::try_from(take(rest)?)
        .ok()
        .filter(|length| *length <= max)
        .ok_or(BlockError::TooLarge)
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, BlockError> {
    u32::try_from(take(rest)?).map_err(|_out_of_range| BlockError::Damaged)
}

/// Writes the difference between successive steps: zeros for regular ticks.
fn put_steps(plain: &mut Vec<u8>, ticks: &[u64]) {
    let (mut before, mut step) = (0_u64, 0_u64);
    for tick in ticks {
        let next = tick.wrapping_sub(before);
        put_signed(plain, next.wrapping_sub(step).cast_signed());
        (before, step) = (*tick, next);
    }
}

fn take_steps(rest: &mut &[u8]) -> Result<Vec<u64>, BlockError> {
    let length = take_length(rest, TICKS_MAX)?;
    let (mut before, mut step) = (0_u64, 0_u64);
    (0..length)
        .map(|_| {
            step = step.wrapping_add(take_signed(rest)?.cast_unsigned());
            before = before.wrapping_add(step);
            Ok(before)
        })
        .collect()
}

fn take_minutes(rest: &mut &[u8]) -> Result<Vec<(u64, u32)>, BlockError> {
    let length = take_length(rest, TICKS_MAX)?;
    let mut before = 0_u64;
    (0..length)
        .map(|_| {
            before = before.wrapping_add(take(rest)?);
            Ok((before, take_u32(rest)?))
        })
        .collect()
}

fn take_columns(rest: &mut &[u8], ticks: usize) -> Result<Vec<(u32, Column)>, BlockError> {
    let length = take_length(rest, COLUMNS_MAX)?;
    if length.saturating_mul(ticks) > VALUES_MAX {
        return Err(BlockError::TooLarge);
    }
    let mut before = 0_u32;
    (0..length)
        .map(|_| {
            before = before.wrapping_add(take_u32(rest)?);
            Ok((before, take_column(rest, ticks)?))
        })
        .collect()
}

/// A flag that says whether all values are there, a bit for each where they are not, and how much
/// each differs from the one before.
fn put_column(plain: &mut Vec<u8>, column: &[Option<i64>], length: usize) {
    let value = |index: usize| column.get(index).copied().flatten();
    let is_whole = (0..length).all(|index| value(index).is_some());
    put(plain, u64::from(!is_whole));
    if !is_whole {
        for first in (0..length).step_by(8) {
            let bits = (0..8).filter(|bit| first + bit < length && value(first + bit).is_some());
            plain.push(bits.fold(0, |byte, bit| byte | (1 << bit)));
        }
    }
    let mut before = 0_i64;
    for value in (0..length).filter_map(value) {
        put_signed(plain, value.wrapping_sub(before));
        before = value;
    }
}

fn take_column(rest: &mut &[u8], length: usize) -> Result<Column, BlockError> {
    let bits = match take(rest)? {
        0 => None,
        1 => {
            let (bits, after) = rest
                .split_at_checked(length.div_ceil(8))
                .ok_or(BlockError::Damaged)?;
            *rest = after;
            Some(bits)
        }
        _ => return Err(BlockError::Damaged),
    };
    let is_there = |index: usize| {
        bits.is_none_or(|bits| {
            bits.get(index / 8)
                .is_some_and(|byte| (byte >> (index % 8)) & 1 == 1)
        })
    };
    let mut before = 0_i64;
    (0..length)
        .map(|index| {
            if !is_there(index) {
                return Ok(None);
            }
            before = before.wrapping_add(take_signed(rest)?);
            Ok(Some(before))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn blocks() -> impl Strategy<Value = Block> {
        let minutes = vec((any::<u64>(), any::<u32>()), 0..5);
        let clock = (any::<u32>(), any::<i64>(), any::<bool>());
        (clock, vec(any::<u64>(), 0..20), minutes).prop_flat_map(|(clock, ticks, minutes)| {
            let column = vec(any::<Option<i64>>(), ticks.len());
            vec((any::<u32>(), column), 0..9).prop_map(move |columns| Block {
                boot: clock.0,
                wall_offset_ms: clock.1,
                clock_is_set: clock.2,
                ticks: ticks.clone(),
                minutes: minutes.clone(),
                columns,
            })
        })
    }

    proptest! {
        #[test]
        fn any_block_is_read_back_as_it_was(block in blocks()) {
            let bytes = block.encode();
            let cut = Block::decode(&bytes[..bytes.len() - 1]);
            // The last byte may be nothing but the end mark.
            prop_assert!(cut.is_err() || cut == Ok(block.clone()));
            prop_assert_eq!(Block::decode(&bytes), Ok(block));
        }

        #[test]
        fn any_column_is_read_back_as_it_was(column in vec(any::<Option<i64>>(), 0..300)) {
            let two = vec![column.clone(), column];
            prop_assert_eq!(decode_columns(&encode_columns(&two), 2, two[0].len()), Ok(two));
        }

        /// Packed, so that the bytes reach the reader behind the decoder.
        #[test]
        fn no_bytes_are_a_panic(plain in vec(any::<u8>(), 0..200), length in 0_usize..3_000) {
            let mut form = vec![1];
            form.extend(&plain);
            for bytes in [plain.clone(), pack(&plain), pack(&form)] {
                if let Ok(block) = Block::decode(&bytes) {
                    prop_assert_eq!(Block::decode(&block.encode()), Ok(block));
                }
                drop(decode_columns(&bytes, 4, length));
            }
        }
    }

    #[test]
    fn what_unpacks_without_end_or_promises_too_much_is_refused() {
        assert_eq!(
            Block::decode(&pack(&vec![0; 5 << 20])),
            Err(BlockError::TooLarge)
        );
        let mut plain = vec![1, 0, 0, 0];
        put(&mut plain, u64::MAX);
        assert_eq!(Block::decode(&pack(&plain)), Err(BlockError::TooLarge));
        assert_eq!(Block::decode(&pack(&[2])), Err(BlockError::Newer));
        assert_eq!(Block::decode(b"no deflate"), Err(BlockError::Damaged));
        assert_eq!(
            decode_columns(&[], 1, usize::MAX),
            Err(BlockError::TooLarge)
        );
        let mut longer = Block::default().encode();
        longer.push(0);
        assert_eq!(Block::decode(&longer), Err(BlockError::Damaged));
    }

    #[test]
    fn an_hour_of_a_quiet_series_takes_a_tenth_of_a_byte_a_sample() {
        let column: Column = (0..240).map(|tick| Some(1_000_000 + tick / 60)).collect();
        assert!(encode_columns(&[column]).len() <= 24);
    }

    #[test]
    fn a_column_of_another_length_is_made_to_fit() {
        let block = Block {
            ticks: vec![1, 2],
            columns: vec![(1, vec![Some(5)]), (2, vec![Some(1), None, Some(3)])],
            ..Block::default()
        };
        let read = Block::decode(&block.encode()).unwrap();
        assert_eq!(read.columns[0].1, [Some(5), None]);
        assert_eq!(read.columns[1].1, [Some(1), None]);
    }
}
