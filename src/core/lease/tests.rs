//! One behaviour a test. What holds over whole histories is in the simulation.

use super::*;

fn party(name: &str) -> Candidate {
    Candidate {
        id: format!("{name}-1"),
        agent: name.to_owned(),
        host: format!("{name}-host"),
    }
}

fn standby(name: &str, beat: u64) -> Standby {
    Standby {
        party: party(name),
        beat,
    }
}

/// A Lease that `holder` holds in the short gait.
fn held(holder: &str, beat: u64, others: &[Standby]) -> Record {
    Record {
        version: format!("v{beat}"),
        holder: Some(party(holder)),
        beat,
        duration: SHORT,
        transitions: 3,
        cluster_id: Some("c-1".to_owned()),
        registered: Some("me-1".to_owned()),
        standby: others.to_vec(),
    }
}

fn quiet(holder: &str, beat: u64, others: &[Standby]) -> Record {
    Record {
        duration: LONG,
        ..held(holder, beat, others)
    }
}

/// The agent `me`, and a clock.
struct Bench {
    election: Election,
    now: Mono,
    kept: Vec<bool>,
}

impl Bench {
    fn new() -> Self {
        Self::that_knows_rivals(false)
    }

    fn that_knows_rivals(knows_rivals: bool) -> Self {
        let now = Mono::since_boot(Duration::from_secs(50));
        let settings = ElectionSettings {
            me: party("me"),
            knows_rivals,
            ask_until: now.after(Duration::from_secs(20)),
        };
        Self {
            election: Election::new(settings, 3, now),
            now,
            kept: Vec::new(),
        }
    }

    /// The next call or wait.
    fn next(&mut self) -> Output {
        loop {
            let output = self.election.poll(self.now);
            if let Output::KeepRivals(knows) = output {
                self.kept.push(knows);
            } else if !matches!(output, Output::Log(_)) {
                return output;
            }
        }
    }

    /// The next call, after the wait for it.
    fn call(&mut self) -> Output {
        loop {
            let output = self.next();
            let Output::Wait(until) = output else {
                return output;
            };
            self.now = until;
        }
    }

    /// The next write; every reading before it finds this.
    fn write_after(&mut self, found: impl Fn() -> Input) -> (Record, Change) {
        loop {
            let output = self.call();
            if let Output::Create(record) = output {
                return (record, Change::Acquired);
            }
            if let Output::Update(record, change) = output {
                return (record, change);
            }
            assert_eq!(output, Output::Get);
            self.give(found());
        }
    }

    /// The next call, which must be a write.
    fn write(&mut self) -> (Record, Change) {
        self.write_after(|| panic!("a reading instead of a write"))
    }

    fn give(&mut self, input: Input) {
        self.election.handle(input, self.now);
    }

    fn written(&mut self) -> Record {
        let (mut record, _) = self.write();
        record.version = format!("w{}", record.beat);
        self.give(Input::Written(record.version.clone()));
        record
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }

    fn find(&mut self, record: Record) {
        assert_eq!(self.call(), Output::Get);
        self.give(Input::Found(record));
    }

    /// Time for which there may be a link from now on.
    fn open_for(&self) -> Option<Duration> {
        match self.election.standing(self.now) {
            LeaseState::Open(until) => Some(until.since(self.now)),
            LeaseState::Asking | LeaseState::StandingBy(_) | LeaseState::Blind => None,
        }
    }

    /// Alone in a new cluster.
    fn alone() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.call(), Output::Get);
        bench.give(Input::NotFound);
        let first = bench.written();
        assert_eq!((first.duration, first.standby.len()), (LONG, 0));
        bench
    }

    /// Announced, behind a holder in the short gait.
    fn standing_by() -> Self {
        let mut bench = Self::new();
        bench.find(held("other", 7, &[]));
        bench.written();
        bench
    }
}

#[test]
fn nobody_links_before_the_api_said_whose_the_link_is() {
    let mut bench = Bench::new();
    assert_eq!(bench.election.standing(bench.now), LeaseState::Asking);
    assert_eq!(bench.next(), Output::Get);
    assert_eq!(bench.open_for(), None);
}

#[test]
fn the_first_agent_creates_the_lease_and_then_only_reads() {
    let mut bench = Bench::alone();
    assert_eq!(bench.open_for(), Some(FENCE_LONG));
    let mine = quiet("me", 1, &[]);
    for _ in 0..100 {
        bench.find(mine.clone());
        assert_eq!(bench.open_for(), Some(FENCE_LONG));
        assert_eq!(bench.election.state(bench.now), "alone");
    }
    assert!(bench.kept.is_empty());
}

#[test]
fn the_cluster_id_is_told_to_the_others() {
    let mut bench = Bench::alone();
    bench.give(Input::ClusterId("c-9".to_owned()));
    let written = bench.written();
    assert_eq!(written.cluster_id.as_deref(), Some("c-9"));
    assert_eq!(bench.election.cluster_id(), Some("c-9"));
}

#[test]
fn the_control_plane_hears_a_new_holder_first_and_that_is_told_once() {
    let mut bench = Bench::alone();
    assert!(bench.election.must_register());
    bench.give(Input::Registered);
    assert_eq!(bench.written().registered.as_deref(), Some("me-1"));
    assert!(!bench.election.must_register());

    // The same agent after a restart goes on where it was, another one does not.
    let mut again = Bench::new();
    again.find(quiet("me", 7, &[]));
    again.written();
    assert!(!again.election.must_register());
    let mut other = Bench::new();
    let left = Record {
        registered: Some("other-1".to_owned()),
        ..held("other", 7, &[]).without("other-1")
    };
    other.find(left);
    other.give(Input::Registered);
    assert_eq!(other.written().registered, None);
    assert!(
        other.election.must_register(),
        "a registration before it held the link was for another term"
    );
}

#[test]
fn a_rival_turns_a_quiet_holder_to_the_short_gait() {
    let mut bench = Bench::alone();
    bench.find(quiet("me", 1, &[standby("other", 1)]));
    let (record, change) = bench.write();
    assert_eq!((record.duration, change), (SHORT, Change::Renewed));
    assert_eq!(
        bench.kept,
        [true],
        "on disk before the others may count on it"
    );
    assert_eq!(
        bench.open_for(),
        Some(FENCE_SHORT),
        "the answer may be lost: the short fence holds from here on"
    );
    bench.give(Input::Written("2".to_owned()));
    let began = bench.now;
    let (next, _) = bench.write();
    assert_eq!(bench.now, began.after(RENEW));
    assert_eq!(next.beat, record.beat + 1);
}

#[test]
fn a_holder_whose_rivals_leave_is_quiet_again() {
    let mut bench = Bench::alone();
    bench.find(quiet("me", 1, &[standby("other", 1)]));
    bench.written();
    assert!(matches!(bench.call(), Output::Update(..)));
    bench.give(Input::Conflict);
    bench.find(held("me", 2, &[]));
    assert_eq!(bench.written().duration, LONG);
    bench.find(quiet("me", 3, &[]));
    assert_eq!(bench.kept, [true, false]);
}

#[test]
fn a_rival_that_is_not_heard_of_for_hours_is_none_any_more() {
    let mut bench = Bench::alone();
    bench.find(quiet("me", 1, &[standby("gone", 1), standby("there", 1)]));
    let hours = FORGET.as_secs() / 3600;
    for hour in 0..=hours {
        let record = bench.written();
        bench.pass(3600);
        // The one that lives says so each hour.
        assert!(matches!(bench.call(), Output::Update(..)));
        bench.give(Input::Conflict);
        let mut found = record.clone();
        for other in &mut found.standby {
            if other.party.agent == "there" {
                other.beat = hour + 2;
            }
        }
        bench.find(found);
    }
    let names: Vec<_> = bench.written().standby;
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].party.agent, "there");
}

#[test]
fn a_fence_counts_from_the_start_of_the_write() {
    let mut bench = Bench::alone();
    bench.find(quiet("me", 1, &[standby("other", 1)]));
    assert!(matches!(bench.call(), Output::Update(..)));
    bench.pass(3);
    bench.give(Input::Written("2".to_owned()));
    assert_eq!(
        bench.open_for(),
        Some(FENCE_SHORT.saturating_sub(Duration::from_secs(3)))
    );
    bench.pass(100);
    assert_eq!(bench.open_for(), None, "a stopped holder is fenced");
    assert_eq!(bench.election.standing(bench.now), LeaseState::Asking);
}

#[test]
fn a_holder_that_finds_another_one_has_no_link() {
    let mut bench = Bench::alone();
    bench.find(held("other", 8, &[]));
    assert_eq!(
        bench.election.standing(bench.now),
        LeaseState::StandingBy(party("other"))
    );
    assert_eq!(bench.kept, Vec::<bool>::new());
    assert!(matches!(bench.next(), Output::Update(_, Change::Standby)));
    assert_eq!(bench.kept, [true]);
}

#[test]
fn one_that_stands_by_says_so_and_keeps_what_is_there() {
    let mut bench = Bench::new();
    bench.find(held("other", 7, &[standby("third", 4)]));
    let (record, change) = bench.write();
    assert_eq!(change, Change::Standby);
    assert_eq!(
        record,
        held("other", 7, &[standby("third", 4), standby("me", 1)])
    );
}

#[test]
fn an_announcement_is_refreshed_each_hour_and_made_again_when_it_is_gone() {
    let mut bench = Bench::standing_by();
    let due = bench.now.after(REFRESH);
    let beat = std::cell::Cell::new(7);
    let (again, _) = bench.write_after(|| {
        beat.set(beat.get() + 1);
        Input::Found(held("other", beat.get(), &[standby("me", 1)]))
    });
    assert!(bench.now.since(due) < LOOK * 2 && bench.now >= due);
    assert_eq!(again.announced("me-1"), Some(2));
    bench.give(Input::Written("w".to_owned()));
    bench.find(held("other", beat.get() + 1, &[]));
    assert_eq!(bench.written().announced("me-1"), Some(3));
}

#[test]
fn a_holder_without_a_sign_of_life_is_followed_after_its_promise() {
    let mut bench = Bench::standing_by();
    let seen = bench.now;
    let found = held("other", 7, &[standby("third", 1), standby("me", 1)]);
    let (claim, change) = bench.write_after(|| Input::Found(found.clone()));
    assert_eq!(bench.now, seen.after(SHORT));
    assert_eq!(change, Change::Acquired);
    assert_eq!(claim.holder, Some(party("me")));
    assert_eq!((claim.version.as_str(), claim.beat), ("v7", 8));
    assert_eq!((claim.transitions, claim.duration), (4, SHORT));
    assert_eq!(
        claim.standby,
        [standby("third", 1), standby("other", 0)],
        "the one that was lost may come back"
    );
    assert_eq!(bench.open_for(), None, "not before it is written");
    bench.give(Input::Written("w".to_owned()));
    assert_eq!(bench.open_for(), Some(FENCE_SHORT));
}

#[test]
fn a_sign_of_life_starts_the_wait_again_but_a_rivals_announcement_does_not() {
    let mut bench = Bench::standing_by();
    bench.pass(11);
    bench.find(held("other", 8, &[standby("me", 1)]));
    let seen = bench.now;
    bench.pass(11);
    let mut noisy = held("other", 8, &[standby("me", 1), standby("third", 9)]);
    noisy.version = "other".to_owned();
    bench.find(noisy);
    bench.write();
    assert_eq!(bench.now, seen.after(SHORT));
}

#[test]
fn a_quiet_holder_gets_its_long_promise_from_when_it_could_know() {
    let mut bench = Bench::new();
    bench.find(quiet("other", 7, &[]));
    bench.pass(100);
    assert_eq!(bench.written().announced("me-1"), Some(1));
    let announced = bench.now;
    let found = quiet("other", 7, &[standby("me", 1)]);
    bench.write_after(|| Input::Found(found.clone()));
    assert_eq!(bench.now, announced.after(LONG));
}

#[test]
fn nobody_is_made_hasty_by_an_odd_number() {
    for (seconds, patience) in [(0, 12), (5, 12), (13, 30), (30, 30), (100_000, 300)] {
        let record = Record {
            duration: Duration::from_secs(seconds),
            ..Record::default()
        };
        assert_eq!(record.patience(), Duration::from_secs(patience));
    }
}

#[test]
fn a_released_lease_is_taken_at_once_and_by_one() {
    for (answer, open) in [
        (Input::Written("w".to_owned()), Some(FENCE_LONG)),
        (Input::Conflict, None),
    ] {
        let mut bench = Bench::standing_by();
        bench.find(held("other", 8, &[standby("me", 1)]).without("other-1"));
        let now = bench.now;
        let (claim, change) = bench.write();
        assert_eq!((change, claim.beat, bench.now), (Change::Acquired, 10, now));
        bench.give(answer);
        assert_eq!(bench.open_for(), open);
    }
}

#[test]
fn a_restarted_holder_goes_on_at_once_but_writes_first() {
    let mut bench = Bench::that_knows_rivals(true);
    bench.find(held("me", 7, &[standby("other", 1)]));
    assert_eq!(bench.open_for(), None);
    let now = bench.now;
    bench.written();
    assert_eq!(bench.now, now);
    assert_eq!(bench.open_for(), Some(FENCE_SHORT));
}

#[test]
fn without_an_api_only_one_that_never_knew_rivals_links() {
    for (knows_rivals, waits) in [(false, true), (true, false)] {
        let mut bench = Bench::that_knows_rivals(knows_rivals);
        let until = bench.now.after(Duration::from_secs(60));
        let mut opened = None;
        while bench.now < until {
            assert_eq!(bench.call(), Output::Get);
            bench.give(Input::Unanswered("no route".to_owned()));
            let open = bench.open_for().map(|_| bench.now);
            opened = opened.or(open);
        }
        assert_eq!(opened.is_some(), waits);
        match opened {
            Some(at) => assert!(at >= Mono::since_boot(Duration::from_secs(70))),
            None => assert_eq!(bench.election.standing(bench.now), LeaseState::Blind),
        }
    }
}

#[test]
fn a_clock_that_is_behind_is_no_broken_cluster() {
    let mut bench = Bench::new();
    let until = bench.now.after(Duration::from_secs(60));
    while bench.now < until {
        assert_eq!(bench.call(), Output::Get);
        bench.give(Input::ClockBehind("it begins tomorrow".to_owned()));
        assert_eq!(bench.open_for(), None);
    }
    assert_eq!(bench.election.standing(bench.now), LeaseState::Blind);
    // A holder is the holder, whatever happens to its clock.
    let mut holder = Bench::alone();
    holder.call();
    holder.give(Input::ClockBehind("it begins tomorrow".to_owned()));
    holder.pass(20);
    assert!(holder.open_for().is_some());
}

#[test]
fn one_that_linked_without_the_api_steps_back_when_there_is_another() {
    let mut bench = Bench::new();
    bench.pass(30);
    assert_eq!(bench.call(), Output::Get);
    bench.give(Input::Unanswered("no route".to_owned()));
    assert_eq!(bench.election.state(bench.now), "alone without the cluster");
    bench.find(held("other", 7, &[]));
    assert_eq!(bench.open_for(), None);
}

#[test]
fn a_holder_with_rivals_is_fenced_without_its_api_and_one_without_is_not() {
    for (others, stays) in [(vec![standby("other", 1)], false), (Vec::new(), true)] {
        let mut bench = Bench::alone();
        bench.find(quiet("me", 1, &others));
        if !others.is_empty() {
            bench.written();
        }
        let until = bench.now.after(Duration::from_secs(120));
        while bench.now < until {
            bench.call();
            bench.pass(5);
            bench.give(Input::Unanswered("no answer".to_owned()));
        }
        assert_eq!(bench.open_for().is_some(), stays);
    }
}

#[test]
fn a_removed_lease_is_made_again_by_its_holder_first() {
    let mut holder = Bench::alone();
    assert_eq!(holder.call(), Output::Get);
    holder.give(Input::NotFound);
    let now = holder.now;
    assert!(matches!(holder.call(), Output::Create(_)));
    assert_eq!(holder.now, now);

    let mut other = Bench::standing_by();
    assert_eq!(other.call(), Output::Get);
    other.give(Input::NotFound);
    let gone = other.now;
    other.write_after(|| Input::NotFound);
    assert_eq!(other.now, gone.after(SHORT));
}

#[test]
fn one_that_may_not_use_the_lease_links_says_so_and_tries_again() {
    let mut bench = Bench::new();
    assert_eq!(bench.call(), Output::Get);
    bench.give(Input::Forbidden("leases is forbidden".to_owned()));
    assert_eq!(bench.election.barred(), Some("leases is forbidden"));
    for _ in 0..10 {
        assert!(bench.open_for().is_some());
        assert_eq!(bench.call(), Output::Get);
        assert!(bench.open_for().is_some());
        bench.give(Input::Forbidden("leases is forbidden".to_owned()));
    }
    // It may read, but the place to write to is missing.
    assert_eq!(bench.call(), Output::Get);
    bench.give(Input::NotFound);
    assert!(matches!(bench.call(), Output::Create(_)));
    bench.give(Input::NotFound);
    assert_eq!(bench.election.barred(), Some("its namespace is not there"));
    assert!(bench.open_for().is_some());
    // The rights came, and so did another holder.
    bench.find(held("other", 7, &[]));
    assert!(bench.open_for().is_some(), "not yet sure");
    bench.written();
    assert_eq!(bench.election.barred(), None);
    assert_eq!(bench.open_for(), None);
}

#[test]
fn an_orderly_stop_releases_the_lease_or_the_place_in_the_row() {
    let mut holder = Bench::alone();
    holder.give(Input::Stop);
    assert_eq!(holder.open_for(), None);
    let (left, change) = holder.write();
    assert_eq!((left.holder, change), (None, Change::Released));
    holder.give(Input::Written("w".to_owned()));
    assert_eq!(holder.next(), Output::Done);

    let mut other = Bench::standing_by();
    other.give(Input::Stop);
    let (left, change) = other.write();
    assert_eq!((left.standby.len(), change), (0, Change::Standby));
    other.give(Input::Written("w".to_owned()));
    assert_eq!(other.next(), Output::Done);
}

#[test]
fn a_stop_does_not_wait_for_an_api_that_is_away() {
    let mut bench = Bench::alone();
    bench.give(Input::Stop);
    bench.write();
    bench.give(Input::Unanswered("no answer".to_owned()));
    assert_eq!(bench.next(), Output::Done);
}

#[test]
fn a_write_that_a_stop_cut_off_is_looked_for_first() {
    let mut bench = Bench::standing_by();
    bench.find(held("other", 8, &[standby("me", 1)]).without("other-1"));
    bench.write();
    bench.give(Input::Stop);
    bench.find(quiet("me", 10, &[]));
    assert_eq!(bench.write().1, Change::Released);
}

#[test]
fn an_answer_that_nobody_waits_for_changes_nothing() {
    let mut bench = Bench::alone();
    bench.give(Input::Found(held("other", 9, &[])));
    assert_eq!(bench.open_for(), Some(FENCE_LONG));
}

#[test]
fn people_are_told_who_it_is() {
    assert_eq!(party("me").words(), "agent me on host me-host");
    let bare = Candidate {
        id: "x".to_owned(),
        ..Candidate::default()
    };
    assert_eq!(bare.words(), "agent x");
}

#[test]
fn a_lone_agent_reads_the_lease_360_times_an_hour_and_writes_nothing() {
    let mut bench = Bench::new();
    assert_eq!(bench.call(), Output::Get);
    bench.give(Input::NotFound);
    let claim = bench.written();
    let (began, mut reads) = (bench.now, 0);
    loop {
        let output = bench.call();
        if bench.now.since(began) >= Duration::from_secs(3600) {
            break;
        }
        assert_eq!(output, Output::Get, "a lone agent only reads");
        reads += 1;
        bench.give(Input::Found(claim.clone()));
    }
    assert!((359..=360).contains(&reads), "{reads}");
}
