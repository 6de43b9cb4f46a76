//! Bisection of a rejected batch: finds the samples that a receiver refuses by sending smaller and
//! smaller parts.
//!
//! A receiver of remote write accepts or refuses a request as a whole, and names the wrong sample
//! only in a text for people. A refused request is sent again in parts until every sample was
//! accepted or refused. A sample is never sent after a newer one of its series that could still be
//! accepted: receivers without an out-of-order window would refuse it then.

use std::ops::Range;

use super::outbox::Samples;

/// Single samples that stand for the others of their tick.
const PROBES: usize = 8;
/// Ticks refused in a row before the newest is asked: then all are probably too old, and one
/// question settles them.
const OLD_TICKS: u8 = 2;
/// Questions on what goes out in one request, about; what is left then is asked for once more in
/// the parts that it is in.
const QUESTIONS_MAX: u32 = 256;

/// A part of a batch: some of its columns, some of its ticks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Piece {
    /// Places in the columns of the block.
    pub columns: Range<usize>,
    /// Places in the ticks of the block.
    pub ticks: Range<usize>,
}

impl Piece {
    /// Two halves, the older or the first one before.
    fn halves(&self, axis: Axis) -> [Self; 2] {
        let halve = |range: &Range<usize>| {
            let middle = range.start.midpoint(range.end);
            [range.start..middle, middle..range.end]
        };
        match axis {
            Axis::Columns => halve(&self.columns).map(|columns| Self {
                columns,
                ticks: self.ticks.clone(),
            }),
            Axis::Ticks => halve(&self.ticks).map(|ticks| Self {
                columns: self.columns.clone(),
                ticks,
            }),
        }
    }

    fn with_ticks(&self, ticks: Range<usize>) -> Self {
        Self {
            columns: self.columns.clone(),
            ticks,
        }
    }

    fn cell(column: usize, tick: usize) -> Self {
        Self {
            columns: column..column + 1,
            ticks: tick..tick + 1,
        }
    }
}

#[derive(Clone, Copy)]
enum Axis {
    Columns,
    Ticks,
}

/// Positions of the samples of a batch.
#[derive(Clone, Debug, Default)]
pub struct Grid {
    columns: Vec<Vec<bool>>,
    ticks: usize,
}

impl Grid {
    /// The grid of these samples. A column whose series is not known has none.
    pub fn of(samples: &Samples) -> Self {
        let columns = samples.block.columns.iter().map(|(number, column)| {
            let is_known = samples.series.iter().any(|(known, _)| known == number);
            let places = column.iter().map(|value| is_known && value.is_some());
            places.collect()
        });
        Self {
            columns: columns.collect(),
            ticks: samples.block.ticks.len(),
        }
    }

    fn has(&self, column: usize, tick: usize) -> bool {
        let column = self.columns.get(column);
        column.is_some_and(|column| column.get(tick) == Some(&true))
    }

    /// Number of samples in a piece.
    pub fn count(&self, piece: &Piece) -> usize {
        let columns = self.columns.get(piece.columns.clone()).unwrap_or_default();
        let counts = columns.iter().map(|column| {
            let places = column.get(piece.ticks.clone()).unwrap_or_default();
            places.iter().filter(|place| **place).count()
        });
        counts.sum()
    }

    /// The piece without the ticks at its ends that have no sample; `None` where it has no sample
    /// at all.
    fn trimmed(&self, piece: &Piece) -> Option<Piece> {
        let has_some = |tick: &usize| piece.columns.clone().any(|column| self.has(column, *tick));
        let first = piece.ticks.clone().find(has_some)?;
        let last = piece.ticks.clone().rfind(has_some)?;
        Some(piece.with_ticks(first..last + 1))
    }

    /// The oldest or the newest sample of a few columns, each alone, spread over those that have
    /// one.
    fn spread(&self, piece: &Piece, end: End) -> Vec<Piece> {
        let sample = |column: usize| {
            let mut ticks = piece.ticks.clone();
            let tick = match end {
                End::Oldest => ticks.find(|tick| self.has(column, *tick))?,
                End::Newest => ticks.rfind(|tick| self.has(column, *tick))?,
            };
            Some(Piece::cell(column, tick))
        };
        let there: Vec<Piece> = piece.columns.clone().filter_map(sample).collect();
        let count = there.len().min(PROBES);
        let places = (0..count).filter_map(|place| there.get(place * there.len() / count));
        places.cloned().collect()
    }
}

#[derive(Clone, Copy)]
enum End {
    Oldest,
    Newest,
}

/// Answer of the receiver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReceiverAnswer {
    /// Accepted.
    Taken,
    /// It will never take this request as it is.
    Refused,
}

/// Open questions, and the state that each leads to.
#[derive(Clone, Debug)]
enum Open {
    /// Not asked for yet; so many ticks before it were refused, one after the other.
    Piece(Piece, u8),
    /// Refused: its oldest tick is asked for.
    Oldest(Piece, u8),
    /// Refused, and so was its oldest tick: single samples of that are asked for.
    OldestSamples(Piece, u8, Vec<Piece>),
    /// Refused, and all before it too: the newest samples of some columns are asked for.
    NewestSamples(Piece, Vec<Piece>),
}

/// One batch on its way to a receiver.
#[derive(Debug)]
pub struct Bisection {
    grid: Grid,
    /// Pieces that were not sent yet, in requests of the wanted size; the next one is last.
    waiting: Vec<Piece>,
    /// Open parts of the last piece; the next one is last.
    open: Vec<Open>,
    questions: u32,
    taken: u64,
    refused: u64,
    is_past: bool,
}

impl Bisection {
    /// All samples of a batch, to be asked for in pieces of at most `samples_max`, the oldest
    /// first. `is_past`: [`Bisection::is_past`] of the batch before.
    pub fn new(grid: Grid, samples_max: usize, is_past: bool) -> Self {
        let whole = Piece {
            columns: 0..grid.columns.len(),
            ticks: 0..grid.ticks,
        };
        let mut waiting = Vec::new();
        let mut large = vec![whole];
        // The newest is taken apart first, so that the oldest is at the end.
        while let Some(piece) = large.pop() {
            let count = grid.count(&piece);
            if count > samples_max && count > 1 {
                let axis = if piece.ticks.len() > 1 {
                    Axis::Ticks
                } else {
                    Axis::Columns
                };
                large.extend(piece.halves(axis));
            } else if count > 0 {
                waiting.push(piece);
            }
        }
        Self {
            grid,
            waiting,
            open: Vec::new(),
            questions: 0,
            taken: 0,
            refused: 0,
            is_past,
        }
    }

    /// Returns the next piece to send; `None` when every sample was accepted or refused. Report the
    /// answer with [`Bisection::answered`].
    pub fn question(&mut self) -> Option<Piece> {
        loop {
            if self.open.is_empty() {
                let piece = self.waiting.pop()?;
                self.open.push(Open::Piece(piece, 0));
                self.questions = 0;
            }
            let question = match self.open.last()? {
                Open::Piece(piece, _) => Some(piece.clone()),
                Open::Oldest(piece, _) if self.may_ask() => {
                    let oldest = piece.ticks.start;
                    Some(piece.with_ticks(oldest..oldest + 1))
                }
                Open::OldestSamples(_, _, samples) | Open::NewestSamples(_, samples)
                    if self.may_ask() =>
                {
                    samples.last().cloned()
                }
                Open::Oldest(..) | Open::OldestSamples(..) | Open::NewestSamples(..) => None,
            };
            match question {
                Some(piece) if self.grid.count(&piece) > 0 => return Some(piece),
                _ => self.give_up(),
            }
        }
    }

    /// Takes the receiver's answer to the last [`Bisection::question`].
    pub fn answered(&mut self, verdict: ReceiverAnswer) {
        let Some(open) = self.open.pop() else {
            return;
        };
        self.questions = self.questions.saturating_add(1);
        let is_taken = verdict == ReceiverAnswer::Taken;
        match open {
            Open::Piece(piece, _) if is_taken => self.count_taken(&piece),
            Open::Piece(piece, run) => self.is_refused(&piece, run),
            Open::Oldest(piece, _) if is_taken => {
                let ticks = piece.ticks.clone();
                self.count_taken(&piece.with_ticks(ticks.start..ticks.start + 1));
                self.open_halves(&piece.with_ticks(ticks.start + 1..ticks.end), Axis::Ticks);
            }
            Open::Oldest(piece, run) => self.ask_oldest_samples(piece, run),
            // Some columns are at fault, and not the time: they are told apart. The sample goes out
            // again with its column; a receiver takes the same value of the same moment twice.
            Open::OldestSamples(piece, _, _) if is_taken => {
                self.open_halves(&piece, Axis::Columns);
            }
            Open::OldestSamples(piece, run, mut samples) => {
                samples.pop();
                if samples.is_empty() {
                    self.oldest_is_refused(&piece, run);
                } else {
                    self.open.push(Open::OldestSamples(piece, run, samples));
                }
            }
            Open::NewestSamples(piece, _) if is_taken => {
                self.is_past = false;
                self.open_halves(&piece, Axis::Ticks);
            }
            Open::NewestSamples(piece, mut samples) => {
                samples.pop();
                if samples.is_empty() {
                    // Of some columns alone it may be another fault.
                    self.is_past |= piece.columns == (0..self.grid.columns.len());
                    self.count_refused(&piece);
                } else {
                    self.open.push(Open::NewestSamples(piece, samples));
                }
            }
        }
    }

    /// Samples that the receiver has.
    pub const fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns whether what was asked for last is too old for this receiver, to its newest sample:
    /// what is next probably is, too.
    pub const fn is_past(&self) -> bool {
        self.is_past
    }

    /// Samples that it will never take.
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    const fn may_ask(&self) -> bool {
        self.questions < QUESTIONS_MAX
    }

    /// Refuses the rest of the piece as a whole and asks no more about it.
    fn give_up(&mut self) {
        match self.open.pop() {
            Some(
                Open::Piece(piece, _)
                | Open::Oldest(piece, _)
                | Open::OldestSamples(piece, _, _)
                | Open::NewestSamples(piece, _),
            ) => self.count_refused(&piece),
            None => {}
        }
    }

    fn is_refused(&mut self, piece: &Piece, run: u8) {
        let Some(piece) = self.grid.trimmed(piece) else {
            return;
        };
        if self.grid.count(&piece) == 1 {
            self.count_refused(&piece);
        } else if self.is_past || run >= OLD_TICKS {
            let samples = self.grid.spread(&piece, End::Newest);
            self.open.push(Open::NewestSamples(piece, samples));
        } else if piece.ticks.len() > 1 {
            self.open.push(Open::Oldest(piece, run));
        } else {
            self.ask_oldest_samples(piece, run);
        }
    }

    fn ask_oldest_samples(&mut self, piece: Piece, run: u8) {
        let start = piece.ticks.start;
        let oldest = piece.with_ticks(start..start + 1);
        let samples = self.grid.spread(&oldest, End::Oldest);
        self.open.push(Open::OldestSamples(piece, run, samples));
    }

    fn oldest_is_refused(&mut self, piece: &Piece, run: u8) {
        let Range { start, end } = piece.ticks;
        self.count_refused(&piece.with_ticks(start..start + 1));
        if start + 1 < end {
            let rest = piece.with_ticks(start + 1..end);
            self.open.push(Open::Piece(rest, run.saturating_add(1)));
        }
    }

    /// The older half, or the first columns, is asked for first.
    fn open_halves(&mut self, piece: &Piece, axis: Axis) {
        let [first, second] = piece.halves(axis);
        for half in [second, first] {
            if self.grid.count(&half) > 0 {
                self.open.push(Open::Piece(half, 0));
            }
        }
    }

    fn count_taken(&mut self, piece: &Piece) {
        let count = u64::try_from(self.grid.count(piece)).unwrap_or(u64::MAX);
        self.taken = self.taken.saturating_add(count);
    }

    fn count_refused(&mut self, piece: &Piece) {
        let count = u64::try_from(self.grid.count(piece)).unwrap_or(u64::MAX);
        self.refused = self.refused.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    const COLUMNS: usize = 40;
    const TICKS: usize = 50;

    fn grid() -> Grid {
        Grid {
            columns: vec![vec![true; TICKS]; COLUMNS],
            ticks: TICKS,
        }
    }

    /// A receiver that takes a request whole or not at all.
    #[derive(Default)]
    struct Receiver {
        /// Ticks below it are too old.
        floor: usize,
        /// Series that it does not want.
        bad_columns: BTreeSet<usize>,
        /// Samples that it does not want.
        bad_cells: BTreeSet<(usize, usize)>,
        /// True if a sample that is older than the last of its series is refused.
        is_in_order: bool,
        has: BTreeSet<(usize, usize)>,
        questions: usize,
    }

    impl Receiver {
        fn wants(&self, (column, tick): (usize, usize)) -> bool {
            tick >= self.floor
                && !self.bad_columns.contains(&column)
                && !self.bad_cells.contains(&(column, tick))
        }

        fn is_late(&self, (column, tick): (usize, usize)) -> bool {
            let newer = (column, tick + 1)..(column + 1, 0);
            self.is_in_order && self.has.range(newer).next().is_some()
        }

        fn ask(&mut self, grid: &Grid, piece: &Piece) -> ReceiverAnswer {
            self.questions += 1;
            let columns = piece.columns.clone();
            let cells: Vec<_> = columns
                .flat_map(|column| piece.ticks.clone().map(move |tick| (column, tick)))
                .filter(|(column, tick)| grid.has(*column, *tick))
                .collect();
            assert!(!cells.is_empty(), "asked for nothing");
            if cells
                .iter()
                .all(|cell| self.wants(*cell) && !self.is_late(*cell))
            {
                self.has.extend(cells);
                ReceiverAnswer::Taken
            } else {
                ReceiverAnswer::Refused
            }
        }

        /// Sends everything, and gives what was wanted and never came.
        fn run(&mut self, grid: &Grid, is_past: bool) -> (Bisection, Vec<(usize, usize)>) {
            let mut bisection = Bisection::new(grid.clone(), 520, is_past);
            while let Some(piece) = bisection.question() {
                let verdict = self.ask(grid, &piece);
                bisection.answered(verdict);
            }
            let all = (0..COLUMNS).flat_map(|column| (0..TICKS).map(move |tick| (column, tick)));
            let there = all.filter(|(column, tick)| grid.has(*column, *tick));
            let lost = there.filter(|cell| self.wants(*cell) && !self.has.contains(cell));
            let lost = lost.collect();
            (bisection, lost)
        }
    }

    #[test]
    fn what_is_taken_goes_out_once_in_pieces_of_the_size_that_was_asked_for() {
        let mut receiver = Receiver {
            is_in_order: true,
            ..Receiver::default()
        };
        let (bisection, lost) = receiver.run(&grid(), false);
        assert_eq!((bisection.taken(), bisection.refused()), (2000, 0));
        assert_eq!((lost, receiver.questions), (Vec::new(), 4));
    }

    #[test]
    fn one_bad_sample_or_series_costs_nothing_but_itself() {
        for is_in_order in [true, false] {
            for tick in [0, 1, 24, 25, 48, 49] {
                for column in [0, 1, 20, 39] {
                    let mut receiver = Receiver {
                        is_in_order,
                        bad_cells: BTreeSet::from([(column, tick)]),
                        ..Receiver::default()
                    };
                    let (bisection, lost) = receiver.run(&grid(), false);
                    assert_eq!(
                        (bisection.refused(), lost),
                        (1, Vec::new()),
                        "{column} {tick}"
                    );
                    assert!(receiver.questions < 100, "{}", receiver.questions);
                }
            }
            for column in [0, 7, 39] {
                let mut receiver = Receiver {
                    is_in_order,
                    bad_columns: BTreeSet::from([column]),
                    ..Receiver::default()
                };
                let (bisection, lost) = receiver.run(&grid(), false);
                assert_eq!((bisection.refused(), lost), (50, Vec::new()), "{column}");
            }
        }
    }

    #[test]
    fn what_is_too_old_is_found_in_a_few_questions() {
        let old = || Receiver {
            floor: TICKS,
            ..Receiver::default()
        };
        let mut receiver = old();
        let (bisection, _) = receiver.run(&grid(), false);
        assert_eq!((bisection.taken(), bisection.refused()), (0, 2000));
        assert!(bisection.is_past());
        assert!(receiver.questions <= 60, "{}", receiver.questions);
        let mut next = old();
        next.run(&grid(), bisection.is_past());
        assert!(next.questions <= 36, "{}", next.questions);
    }

    #[test]
    fn where_too_old_ends_the_rest_arrives() {
        for floor in 0..=TICKS {
            for (is_past, is_in_order) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let mut receiver = Receiver {
                    floor,
                    is_in_order,
                    ..Receiver::default()
                };
                let (bisection, lost) = receiver.run(&grid(), is_past);
                // In-order receivers may lose a little of the series that was asked for the end of
                // what is too old.
                let may_lose = if is_in_order { 13 } else { 0 };
                assert!(lost.len() <= may_lose, "{floor} {is_past} {lost:?}");
                assert_eq!(bisection.taken() + bisection.refused(), 2000);
                assert!(receiver.questions < 200, "{floor} {}", receiver.questions);
            }
        }
    }

    proptest! {
        #[test]
        fn a_few_faults_anywhere_cost_nothing_but_themselves(
            floor in 0..TICKS,
            columns in prop::collection::btree_set(0..COLUMNS, 0..3),
            cells in prop::collection::btree_set((0..COLUMNS, 0..TICKS), 0..3),
            holes in prop::collection::btree_set((0..COLUMNS, 0..TICKS), 0..200),
            is_past: bool,
        ) {
            let mut grid = grid();
            for (column, tick) in holes {
                grid.columns[column][tick] = false;
            }
            let all = grid.count(&Piece { columns: 0..COLUMNS, ticks: 0..TICKS });
            let mut receiver = Receiver {
                floor,
                bad_columns: columns,
                bad_cells: cells,
                ..Receiver::default()
            };
            let (bisection, lost) = receiver.run(&grid, is_past);
            prop_assert_eq!(lost, Vec::new());
            prop_assert_eq!(bisection.taken() + bisection.refused(), u64::try_from(all).unwrap());
            prop_assert_eq!(bisection.taken(), u64::try_from(receiver.has.len()).unwrap());
        }

        #[test]
        fn a_receiver_that_answers_anything_is_done_with_after_a_while(
            answers in prop::collection::vec(any::<bool>(), 1..400),
            is_past: bool,
        ) {
            let mut bisection = Bisection::new(grid(), 500, is_past);
            let mut answers = answers.into_iter().cycle();
            let mut questions = 0;
            while bisection.question().is_some() {
                let taken = answers.next().unwrap();
                bisection.answered(if taken { ReceiverAnswer::Taken } else { ReceiverAnswer::Refused });
                questions += 1;
            }
            prop_assert!(questions < 4 * 2 * 257, "{questions}");
            prop_assert_eq!(bisection.taken() + bisection.refused(), 2000);
        }
    }
}
