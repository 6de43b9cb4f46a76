//! Watch over k3s: the look of root's timer, each minute, and the repairs that follow from it, as
//! changes of the journal.

use std::{os::unix::fs::MetadataExt, time::Duration};

use super::{
    super::{
        Keeper, end,
        inspect::all_duplicates,
        journal::{Journal, LockedJournal},
        next, now, summary,
        system::System,
        with_fix,
    },
    Backup, NOTE, Target,
    backup::DOES as DOES_BACKUP,
    connect::open_to,
    datastore::{self, CHECKED_BYTES_MAX},
    describe, guards,
    restore::is_of_guard,
};
use crate::{
    core::{
        journal::{Next, Outcome},
        k3s::{
            Role, backup,
            clock::{ClockFacts, is_tracked},
            connect, consumer,
            faults::{
                self, Api, K3sState, Node, PODS_JSONPATH, PROPERTIES, RENEWED_DAYS, Repair,
                Service, pods_state,
            },
            images,
            servers::Datastore,
            shutdown,
            step::{Step, run},
            texts::Init,
            watch::{self, Escalation, Order, STATE, STATE_MODE, WatchState},
            window::{self, Window},
        },
        time::{Now, Wall},
    },
    error::{Error, Result},
    files,
    host::{
        clock,
        exec::{self, Limits, ProcessOutput},
        network,
    },
    wire::keeper::{Act, Done, Finding, K3sPlan, Managed, Record},
};

/// Options of a run of the watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// True if root allows repairs.
    pub repairs: bool,
    /// Interval of backups, and the backup or what is wrong with its settings; none: there are none
    /// by schedule.
    pub backups: Option<(Duration, Result<Backup>)>,
    /// Time of the day for restarts that can wait; `None`: any.
    pub window: Option<Window>,
    /// Group of the agent, which may read what was found.
    pub group: Option<u32>,
    /// Date of this program: the clock is wrong where it is earlier.
    pub built: Wall,
}

/// A repair that a run of the watch made.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Observation.
    pub seen: String,
    /// End of the change.
    pub done: Done,
}

/// Result of a due repair.
enum Attempt {
    /// Something speaks against it for now.
    HeldUp,
    /// It was begun, and something else was changed meanwhile.
    Unknown,
    /// It has ended.
    Over(Repaired),
}

const DOES: &str = "watch over k3s, and repair what is known to break";
const WHO: &str = "the watch over k3s";
const STATE_BYTES_MAX: usize = 64 * 1024;
/// Time for a busy API.
const API: Limits = Limits {
    within: Duration::from_secs(20),
    output_bytes_max: 64 * 1024,
};
/// Time for k3s to be Ready after a repair, no longer than the pause until the next one: a slow
/// card takes minutes.
const READY_WITHIN: Duration = Duration::from_secs(600);

impl Keeper {
    /// The plan to watch over k3s.
    pub fn k3s_watch_plan(&self, program: &str) -> Result<K3sPlan> {
        self.can_watch()?;
        Ok(K3sPlan {
            does: DOES.to_owned(),
            steps: describe::steps(&self.watch_steps(program)?),
            undo: "sudo pipeops-agent undo ID".to_owned(),
            ..K3sPlan::default()
        })
    }

    /// Has k3s watched from now on.
    pub fn k3s_watch(&self, program: &str, who: &str) -> Result<Done> {
        let journal = self.open()?;
        self.settle(&journal)?;
        self.can_watch()?;
        if self.is_watched()? {
            return Ok(Done {
                outcome: Outcome::Done.as_str().to_owned(),
                sentence: "k3s is watched already".to_owned(),
                ..Done::default()
            });
        }
        let record = Record::new("k3s.watch", who, now(), DOES.to_owned());
        let steps = self.watch_steps(program)?;
        self.begin_steps(&journal, record, steps, Duration::ZERO)
    }

    pub(super) fn watch_steps(&self, program: &str) -> Result<Vec<Step>> {
        let is_there = |path: &str| self.system.is_there(path);
        Ok(watch::steps(self.system.init()?, program, &is_there))
    }

    pub(super) fn is_watched(&self) -> Result<bool> {
        Ok(self.system.is_there(watch::unit_path(self.system.init()?)))
    }

    /// Runs the watch once: repairs what is due, and records the state for the next run and the
    /// agent.
    pub fn k3s_watch_once(&self, wanted: &WatchOptions) -> Result<Option<Repaired>> {
        let Some(note) = self.managed()? else {
            return Ok(None);
        };
        let is_running = Journal::open(&self.directory)?.lock().is_err();
        if !is_running && self.unfinished()?.is_some() {
            self.finish_unguarded()?;
        }
        let unfinished = self.unfinished()?;
        if is_running || unfinished.is_some() {
            self.leave_unjudged(is_running)?;
            if let Some(id) = unfinished.filter(|_| !is_running) {
                let mut watch_state = self.watch_state();
                watch_state.record_unfinished(&id, clock::now());
                self.remember(&watch_state, wanted.group)?;
            }
            return Ok(None);
        }
        self.end_waits()?;
        let mut watch_state = self.watch_state();
        watch_state.clear_unfinished();
        let now = clock::now();
        let state = self.state(&note, &mut watch_state);
        let orders = watch_state.observe(&state, now, wanted.repairs);
        let folder = wanted.folder();
        if !orders.is_empty() {
            self.remember(&watch_state, wanted.group)?;
            self.leave(&state, &note, &watch_state, (folder, false))?;
        }
        let mut repaired = None;
        for order in &orders {
            match self.repair(order, &note, &mut watch_state, (&state, wanted))? {
                Attempt::HeldUp => {}
                Attempt::Unknown => break,
                Attempt::Over(done) => {
                    repaired = Some(done);
                    break;
                }
            }
        }
        // The datastore of a worker is its server's.
        let backups = wanted.backups.as_ref();
        let backups = backups.filter(|_| self.system.role() == Role::Server);
        self.back_up_in_turn(backups, &note, &mut watch_state)?;
        self.remember(&watch_state, wanted.group)?;
        let done = repaired.as_ref().map(|repaired| &repaired.done.outcome);
        let is_mended = done.is_some_and(|outcome| outcome == Outcome::Done.as_str());
        self.leave(&state, &note, &watch_state, (folder, is_mended))?;
        if let Some((_, Ok(backup))) = backups {
            self.hand_over(backup, &note.node, &note.data_dir)?;
        }
        Ok(repaired)
    }

    /// Ends changes that were stopped by a kill or a power cut, and that no service goes on with:
    /// repairs of the watch, and those that had not put their own service in place, or had removed
    /// it already.
    fn finish_unguarded(&self) -> Result<()> {
        let Ok(journal) = Journal::open(&self.directory)?.lock() else {
            return Ok(());
        };
        let open = journal.records()?.into_iter();
        for mut record in open.filter(|record| record.outcome.is_none()) {
            let is_guarded = guards(&record)
                .any(|act| matches!(act, Act::Link { path, .. } if self.system.is_there(path)));
            match left_to_do(&record) {
                _ if record.who == WHO => {}
                Remainder::All if !is_guarded => record.undone_by = Some(WHO.to_owned()),
                Remainder::Guard if !is_guarded => {}
                Remainder::All | Remainder::Guard | Remainder::Some => continue,
            }
            self.go_on(&journal, record)?;
        }
        Ok(())
    }

    /// Backs k3s up where that is due. A failure is remembered, and holds nothing else up.
    fn back_up_in_turn(
        &self,
        wanted: Option<&(Duration, Result<Backup>)>,
        note: &Managed,
        watch_state: &mut WatchState,
    ) -> Result<()> {
        let now = clock::now();
        let every = wanted.map(|(every, _)| *every);
        // Without settings there is no backup either.
        let target = wanted.and_then(|(_, wanted)| Some(&wanted.as_ref().ok()?.to));
        let last = || self.system.last_backup(note, target?);
        let next = every.and_then(|every| {
            let managed = std::fs::metadata(self.directory.join(NOTE)).ok()?;
            let managed = Wall::from_millis(managed.mtime().saturating_mul(1000));
            Some(backup::next(last(), managed, every, &note.node, now.wall))
        });
        if every.is_none() {
            watch_state.unsaved = None;
        }
        if !watch_state.take_backup_turn(next, now) || watch_state.is_stopped {
            return Ok(());
        }
        // Whoever has the lock is changing something: the next look tries again.
        let Ok(journal) = Journal::open(&self.directory)?.lock() else {
            return Ok(());
        };
        if is_unfinished(&journal)? {
            return Ok(());
        }
        let failure = match wanted {
            Some((_, Ok(wanted))) => {
                let _telling = self.system.begin_telling(DOES_BACKUP);
                self.back_up_unasked(wanted).err()
            }
            Some((_, Err(error))) => Some(error.clone()),
            None => None,
        };
        watch_state.record_backup(failure.map(|error| error.sentence()).as_deref(), now);
        if let (None, Some(every)) = (&watch_state.unsaved, every) {
            let next = backup::next(last(), now.wall, every, &note.node, clock::now().wall);
            watch_state.next_backup_ms = Some(next.millis());
        }
        Ok(())
    }

    /// State of the watch; an empty one where none can be read.
    pub(super) fn watch_state(&self) -> WatchState {
        let read = files::read_if_there(&self.system.path(STATE), STATE_BYTES_MAX);
        let text = read.ok().flatten().unwrap_or_default();
        WatchState::parse(&String::from_utf8_lossy(&text))
    }

    fn remember(&self, watch_state: &WatchState, group: Option<u32>) -> Result<()> {
        let directory = self.system.path(connect::DIRECTORY);
        files::create_directory(&directory)?;
        if let Some(group) = group {
            open_to(&directory, group)?;
        }
        let text = watch_state.text();
        files::replace(&self.system.path(STATE), text.as_bytes(), STATE_MODE)
    }

    fn can_watch(&self) -> Result<()> {
        if self.managed()?.is_some() {
            return Ok(());
        }
        Err(Error::new("k3s cannot be watched")
            .why("pipeops-agent does not manage a k3s on this machine")
            .fix("sudo pipeops-agent k3s adopt"))
    }

    fn state(&self, note: &Managed, watch_state: &mut WatchState) -> K3sState {
        let now = clock::now();
        if watch_state.is_first() {
            let mark = self.directory.join(shutdown::stopped(NOTE));
            if std::fs::remove_file(mark).is_err() {
                watch_state.record_power_cut();
            }
        }
        let service = self.system.service();
        let mut state = K3sState {
            restarts: watch_state.record_restarts(service.restarts, now),
            up_s: now.mono.elapsed_since_boot().as_secs(),
            jumped_s: watch_state.jumped_s(now),
            init: self.system.init().unwrap_or_default(),
            role: self.system.role(),
            wall: now.wall,
            ..K3sState::default()
        };
        if state.restarts > 0 || !service.is_running() {
            state.log = self.system.log_of_parts(&note.data_dir);
        }
        state.datastore = self.system.datastore_lengths(&note.data_dir);
        if watch_state.take_count_turn(now) {
            state.duplicates = all_duplicates(&self.system);
        }
        if service.is_running() && watch_state.is_api_due(now) {
            state.api = self.system.api(&note.node);
            if let Some(Api::Node(node)) = &state.api
                && node.lacks_dns
            {
                state.dns = self.system.dns();
                state.lacks_image = images::wanted(&state.dns, &note.node);
            }
            state.archives = Some(self.system.archives(&note.data_dir));
            if let Some(Api::Node(node)) = &state.api
                && node.lacks_memory()
            {
                state.consumer = self.system.consumer();
            }
            state.certificate = self.system.certificate(&note.data_dir, now, watch_state);
            state.addresses = network::all_addresses(self.system.root()).unwrap_or_default();
            state.has_route = network::has_default_route(self.system.root());
            state.has_fixed_address = self.system.has_fixed_address();
            state.renamed = self.renamed(note);
        }
        if let Some(Api::Node(node)) = &state.api
            && node.is_ready()
            && watch_state.is_check_due(now)
        {
            let path = self
                .system
                .path(&format!("{}/server/db/state.db", note.data_dir));
            let length = state.datastore.map(|[main, log]| main.saturating_add(log));
            let is_short = length.is_some_and(|length| length <= CHECKED_BYTES_MAX);
            let damage = is_short.then(|| datastore::damage(&path)).flatten();
            watch_state.record_check(damage.as_deref(), now);
        }
        state.damage.clone_from(&watch_state.damage);
        state.service = service;
        state
    }

    /// Carries a repair out, where nothing speaks against it.
    fn repair(
        &self,
        order: &Order,
        note: &Managed,
        watch_state: &mut WatchState,
        (state, wanted): (&K3sState, &WatchOptions),
    ) -> Result<Attempt> {
        // Whoever has the lock is changing something: the next look judges it afresh.
        let Ok(journal) = Journal::open(&self.directory)?.lock() else {
            return Ok(Attempt::HeldUp);
        };
        if is_unfinished(&journal)? || self.system.service().is_stopped_on_purpose() {
            return Ok(Attempt::HeldUp);
        }
        if let Some(window) = wanted.window.filter(|_| CAN_WAIT.contains(&order.fault.id))
            && self.k3s_opens_in(window).is_ok_and(|wait| wait.is_some())
        {
            return Ok(Attempt::HeldUp);
        }
        let held_up = match self
            .system
            .speaks_against(order, note, watch_state, wanted.built)
        {
            Some(why) => Err(why),
            None => self
                .repair_acts(order.repair, note)
                .map_err(|error| error.sentence())
                .and_then(|acts| Ok((acts, self.turn(order, note)?))),
        };
        let (acts, has_lease) = match held_up {
            Ok(found) => found,
            Err(why) => {
                watch_state.record_hold(order, &why);
                return Ok(Attempt::HeldUp);
            }
        };
        let does = format!("{}: {}", order.repair.does(), order.seen);
        let record = Record {
            is_one_way: true,
            ..Record::new(
                &format!("k3s.{}", order.repair.suffix()),
                WHO,
                now(),
                does.clone(),
            )
        };
        let mut done = self.begin(&journal, record, acts)?;
        watch_state.record_begin(order, clock::now());
        self.remember(watch_state, wanted.group)?;
        if done.outcome == Outcome::Done.as_str() {
            let waits = format!(
                "for the node {} to be Ready, since {}",
                note.node,
                now().rfc3339()
            );
            journal.mark(done.change.as_deref(), Some(waits))?;
        }
        // While it comes up, whoever wants to change something may do so.
        drop(journal);
        self.leave(state, note, watch_state, (wanted.folder(), false))?;
        let _telling = self.system.begin_telling(&does);
        if done.outcome == Outcome::Done.as_str() {
            let came = self.system.wait_ready(&note.node, None, READY_WITHIN);
            let came = came.and_then(|()| self.has_helped(order, note, state, watch_state));
            if has_lease {
                self.leave_lease(&note.node);
            }
            match self.waited(&done, came.err())? {
                Some(judged) => done = judged,
                None => return Ok(Attempt::Unknown),
            }
        }
        let is_done = done.outcome == Outcome::Done.as_str();
        watch_state.record_end(order, (!is_done).then_some(done.sentence.as_str()));
        Ok(Attempt::Over(Repaired {
            seen: order.seen.clone(),
            done,
        }))
    }

    /// Judges a repair whose node is Ready by what it was for, where the look after it would not.
    fn has_helped(
        &self,
        order: &Order,
        note: &Managed,
        state: &K3sState,
        watch_state: &mut WatchState,
    ) -> Result<()> {
        if order.fault.id.starts_with(CERTIFICATES) {
            return self.system.has_renewed(note, state, watch_state);
        }
        let lacks = match order.repair {
            Repair::Start | Repair::Restart => None,
            Repair::Import => {
                let image = state.lacks_image.as_deref();
                let image = image.filter(|_| order.fault.id == GONE);
                self.system.still_lacks(&note.data_dir, image)
            }
        };
        match lacks {
            Some(why) => Err(
                Error::new("k3s imported its image archives, but the fault remains")
                    .why(why)
                    .fix(order.fault.fix),
            ),
            None => Ok(()),
        }
    }

    fn repair_acts(&self, repair: Repair, note: &Managed) -> Result<Vec<Act>> {
        let forget = match repair {
            Repair::Import => self.system.forget_imports(&note.data_dir),
            Repair::Start | Repair::Restart => None,
        };
        let commands = commands(repair, self.system.init()?, self.system.role());
        let commands = commands.iter().map(|command| run(command, ""));
        let steps = forget.into_iter().chain(commands);
        let acts = steps.map(|step| self.system.act_of(step, Duration::ZERO));
        acts.collect()
    }

    /// Minutes until a window opens; `None`: it is open.
    ///
    /// # Errors
    /// Nothing tells the local time.
    pub fn k3s_opens_in(&self, window: Window) -> Result<Option<u16>> {
        let argv = ["date", "+%H:%M"];
        let said = exec::run(self.system.root(), &argv, Limits::SHORT)?;
        let now = window::minutes(&said.stdout)
            .ok_or_else(|| Error::new("the local time is not known").why(said.stdout))?;
        Ok(window.opens_in(now))
    }

    /// Takes the Lease for a restart that can wait, where there are several servers; true if it has
    /// it. An error says why it is not the turn of this one.
    fn turn(&self, order: &Order, note: &Managed) -> std::result::Result<bool, String> {
        let own = &note.node;
        let can_wait = order.fault.id.starts_with(CERTIFICATES) || order.repair == Repair::Import;
        if !can_wait || self.system.role() == Role::Worker {
            return Ok(false);
        }
        let Some(servers) = self.system.servers() else {
            // A member whose certificates have ended is no part of its cluster: nothing is lost.
            let has_ended = order.fault.id == ENDED;
            return match self.system.datastore(&note.data_dir) {
                Datastore::Etcd if !has_ended => Err(UNCOUNTED.to_owned()),
                Datastore::Etcd | Datastore::Sqlite | Datastore::Elsewhere => Ok(false),
            };
        };
        if servers.len() <= 1 {
            return Ok(false);
        }
        if let Some(away) = servers.iter().find(|it| !it.is_ready && it.name != *own) {
            return Err(format!("the server {} is not Ready", away.name));
        }
        let (answer, held) = self.lease(own).map_err(|error| error.sentence())?;
        if let Some(held) = held {
            return Err(held.what);
        }
        self.take_lease(&answer, own, READY_WITHIN)
            .map_err(|error| error.sentence())?;
        Ok(true)
    }

    /// Writes down how the wait after a repair ended. `None`: it was in vain, and something else
    /// was or is being changed, so nobody can say why.
    fn waited(&self, done: &Done, error: Option<Error>) -> Result<Option<Done>> {
        let Ok(journal) = Journal::open(&self.directory)?.lock() else {
            // The next look ends the wait.
            return Ok(error.is_none().then(|| done.clone()));
        };
        journal.mark(done.change.as_deref(), None)?;
        let Some(error) = error else {
            return Ok(Some(done.clone()));
        };
        let last = journal.records()?.pop();
        let Some(mut record) = last.filter(|record| Some(record.id()) == done.change) else {
            return Ok(None);
        };
        end(&mut record, Outcome::Failed);
        record.why = Some(with_fix(&error));
        journal.write(&record)?;
        Ok(Some(summary(&record)))
    }

    /// Ends waits that a look left behind which was killed, or met another change: there is one
    /// look at a time.
    fn end_waits(&self) -> Result<()> {
        let Ok(journal) = Journal::open(&self.directory)?.lock() else {
            return Ok(());
        };
        let waiting = journal.records()?.into_iter();
        for record in waiting.filter(|record| record.waits.is_some()) {
            journal.mark(Some(&record.id()), None)?;
        }
        Ok(())
    }
}

impl LockedJournal {
    /// Writes down what a change waits for from now on, if anything.
    fn mark(&self, change: Option<&str>, waits: Option<String>) -> Result<()> {
        let found = self.records()?.into_iter();
        let mut found = found.filter(|record| Some(record.id().as_str()) == change);
        match found.next() {
            Some(record) => self.write(&Record { waits, ..record }),
            None => Ok(()),
        }
    }
}

impl WatchOptions {
    /// Directory that settings name for backups.
    fn folder(&self) -> Option<&Target> {
        let (_, backup) = self.backups.as_ref()?;
        Some(&backup.as_ref().ok()?.to)
    }
}

/// A fault that is left to a person, for whoever asks.
pub(super) fn finding(fault: Escalation) -> Finding {
    Finding {
        id: fault.id.to_owned(),
        what: fault.sentence,
        fix: fault.fix,
    }
}

/// The commands of a repair.
fn commands(repair: Repair, init: Init, role: Role) -> Vec<String> {
    let name = role.name();
    match (init, repair) {
        (Init::Systemd, Repair::Start) => vec![
            format!("systemctl reset-failed {name}"),
            format!("systemctl start --no-block {name}"),
        ],
        (Init::Systemd, Repair::Restart | Repair::Import) => {
            vec![format!("systemctl restart --no-block {name}")]
        }
        (Init::OpenRc, Repair::Start) => vec![
            format!("rc-service {name} zap"),
            format!("rc-service {name} start"),
        ],
        (Init::OpenRc, Repair::Restart | Repair::Import) => {
            vec![format!("rc-service {name} restart")]
        }
    }
}

/// Remainder of a change that was stopped.
enum Remainder {
    /// All of it: at most the service was begun that goes on after a power cut.
    All,
    /// The removal of that service.
    Guard,
    /// Other acts are left, or the change has no resume service.
    Some,
}

fn left_to_do(record: &Record) -> Remainder {
    let are_guards = |acts: Option<&[Act]>| acts.unwrap_or_default().iter().all(is_of_guard);
    if guards(record).next().is_none() {
        return Remainder::Some;
    }
    let at = |position: u32| usize::try_from(position).unwrap_or(usize::MAX);
    match next(record) {
        Next::Forward(first) if are_guards(record.acts.get(at(first)..)) => Remainder::Guard,
        Next::Forward(_) if are_guards(record.acts.get(..record.steps.len())) => Remainder::All,
        Next::Undo(last) if are_guards(record.acts.get(..=at(last))) => Remainder::Guard,
        Next::AllUndone => Remainder::Guard,
        Next::Forward(_) | Next::Undo(_) | Next::Over => Remainder::Some,
    }
}

fn is_unfinished(journal: &Journal) -> Result<bool> {
    let records = journal.records()?;
    Ok(records.iter().any(|record| record.outcome.is_none()))
}

impl System {
    fn service(&self) -> Service {
        let name = self.role().name();
        let said = |argv: &[&str]| {
            let ended = exec::run(self.root(), argv, Limits::SHORT);
            ended.map_or_else(|_| String::new(), |ended| ended.stdout + &ended.stderr)
        };
        match self.init().unwrap_or_default() {
            Init::Systemd => Service::parse(&said(&["systemctl", "show", name, "-p", PROPERTIES])),
            Init::OpenRc => self.service_of_openrc(name, &said(&["rc-service", name, "status"])),
        }
    }

    /// The service, with what supervise-daemon writes down of it.
    fn service_of_openrc(&self, name: &str, status: &str) -> Service {
        let options = format!("/run/openrc/options/{name}");
        let starts = self.line(&format!("{options}/start_count"));
        let process = format!("{options}/child_pid");
        let pid = self.line(&process).unwrap_or_default();
        let is_alive = !pid.is_empty() && self.is_there(&format!("/proc/{pid}/stat"));
        let started = std::fs::metadata(self.path(&process));
        let started = started.map_or(0, |found| found.mtime());
        let now = clock::now();
        let age_s = u64::try_from(now.wall.millis() / 1000 - started).unwrap_or(0);
        Service {
            restarts: starts.and_then(|starts| starts.parse().ok()).unwrap_or(0),
            is_enabled: self.is_there(&format!("/etc/runlevels/default/{name}")),
            // A clock that was set makes it no older than the machine is up.
            started_s: Some(
                now.mono
                    .elapsed_since_boot()
                    .as_secs()
                    .saturating_sub(age_s),
            ),
            ..Service::of_openrc(
                status,
                self.is_there(&format!("/run/openrc/failed/{name}")),
                is_alive,
            )
        }
    }

    /// The answer of the API about this node; `None`: it answers, but not about that.
    fn api(&self, node: &str) -> Option<Api> {
        let role = self.role();
        let jsonpath = format!("-o=jsonpath={}", faults::jsonpath(role));
        let node = format!("node/{node}");
        let dns = match role {
            Role::Server => &["-n", DNS_NAMESPACE, "deployment/coredns"][..],
            Role::Worker => &[],
        };
        let asked = [&["get", &node, &jsonpath], dns].concat();
        let asked = self.kubectl_within("10s", API, &asked);
        let ended = match asked {
            Ok(ended) => ended,
            Err(error) => return Some(Api::Silent(error.sentence())),
        };
        // Where there is no CoreDNS, the client complains of that and answers about the node.
        let found = Node::parse(&ended.stdout);
        if ended.success() || found.is_some() {
            return found.map(Api::Node);
        }
        if ended.stderr.contains("(NotFound): nodes ") {
            return Some(Api::NoNode);
        }
        if self.is_api_ready() {
            return None;
        }
        let said = ended.stderr.lines().rfind(|line| !line.trim().is_empty());
        let said = said.unwrap_or("no answer").trim().chars().take(160);
        Some(Api::Silent(said.collect()))
    }

    /// Returns whether the API answers that it has no node of that name.
    pub(super) fn is_unknown(&self, node: &str) -> bool {
        self.api(node) == Some(Api::NoNode)
    }

    /// State of the Pods of CoreDNS, of which none is ready.
    fn dns(&self) -> String {
        let jsonpath = format!("-o=jsonpath={PODS_JSONPATH}");
        let asked = [
            "get",
            "pod",
            "-n",
            DNS_NAMESPACE,
            "-l",
            "k8s-app=kube-dns",
            "--field-selector=status.phase!=Failed",
            &jsonpath,
        ];
        match self.kubectl_within("10s", API, &asked) {
            Ok(ended) if ended.success() => pods_state(&ended.stdout),
            Ok(_) | Err(_) => "its Pods are not known".to_owned(),
        }
    }

    /// The Pod or program that has most of the memory.
    fn consumer(&self) -> Option<String> {
        let processes = self.list("/proc", "").into_iter().filter_map(|folder| {
            Some(consumer::Process {
                name: self.line(&format!("{folder}/comm"))?,
                cgroup: self.text(&format!("{folder}/cgroup"))?,
                bytes: consumer::resident(&self.text(&format!("{folder}/status"))?),
            })
        });
        let logs = self.list("/var/log/pods", "");
        consumer::largest(&processes.collect::<Vec<_>>(), &logs)
    }

    /// The certificate of k3s that ends first, of those that it renews when it starts, and days
    /// until then.
    fn certificate(
        &self,
        data_dir: &str,
        now: Now,
        watch_state: &WatchState,
    ) -> Option<(String, i64)> {
        let ends = self.ends(data_dir);
        let renewed =
            ends.filter(|(path, end)| is_renewed(path) && watch_state.is_renewed(*end, now.wall));
        let (path, end) = renewed.min_by_key(|(_, end)| end.millis())?;
        Some((path, days_until(end, now)))
    }

    /// Judges a restart for certificates. Those that would still be renewed by now are left alone
    /// from here on, so that they neither cause another restart nor hide one that is needed.
    fn has_renewed(
        &self,
        note: &Managed,
        state: &K3sState,
        watch_state: &mut WatchState,
    ) -> Result<()> {
        let now = clock::now();
        let is_left =
            |(path, end): &(String, Wall)| is_renewed(path) && days_until(*end, now) < RENEWED_DAYS;
        let left: Vec<_> = self.ends(&note.data_dir).filter(is_left).collect();
        watch_state.record_unrenewed(left.iter().map(|(_, end)| *end), now.wall);
        let wanted = state.certificate.as_ref().map(|(path, _)| path);
        match left.iter().find(|(path, _)| Some(path) == wanted) {
            Some((path, _)) => Err(
                Error::new("k3s did not renew a certificate when it started")
                    .why(format!("{path} is not one that it makes, or no longer"))
                    .fix(format!(
                        "renew it where it came from; or, if nothing uses it: sudo rm {path}"
                    )),
            ),
            None => Ok(()),
        }
    }

    /// The reason not to repair this now.
    fn speaks_against(
        &self,
        order: &Order,
        note: &Managed,
        watch_state: &WatchState,
        built: Wall,
    ) -> Option<String> {
        let is_dated = order.fault.id.starts_with(CERTIFICATES);
        if is_dated && let Some(why) = self.clock(&note.data_dir, watch_state, built).doubt() {
            return Some(why);
        }
        if order.fault.id == ADDRESS
            && self.role() == Role::Server
            && self.datastore(&note.data_dir) == Datastore::Etcd
        {
            return Some(
                "etcd knows this server by that address, and k3s does not start with another one"
                    .to_owned(),
            );
        }
        if order.fault.id == GONE
            && let Some(why) = self.lacks_room_for_images(&note.data_dir)
        {
            return Some(why);
        }
        // The kind does not exist where nobody installed that controller.
        let plans = self.names(&["plans.upgrade.cattle.io", "-A"]);
        (plans > 0).then(|| "the system-upgrade-controller has plans for this cluster".to_owned())
    }

    fn clock(&self, data_dir: &str, watch_state: &WatchState, built: Wall) -> ClockFacts {
        let now = now();
        let all: Vec<_> = self.certificates(data_dir).collect();
        let is_renewed = |path: &str, end| is_renewed(path) && watch_state.is_renewed(end, now);
        let ends = all.iter().filter(|(path, _, end)| is_renewed(path, *end));
        let start = all.iter().map(|(_, start, _)| *start).max();
        ClockFacts {
            now,
            built,
            newest_start: start.unwrap_or_default(),
            first_end: ends.map(|(_, _, end)| *end).min().unwrap_or_default(),
            is_synchronized: self.is_clock_synchronized(),
        }
    }

    /// Returns whether systemd or chrony says so; other time services do not tell.
    pub(super) fn is_clock_synchronized(&self) -> bool {
        let said = |argv: &[&str]| {
            let ended = exec::run(self.root(), argv, Limits::SHORT);
            ended.map_or_else(|_| String::new(), |ended| ended.stdout)
        };
        let argv = ["timedatectl", "show", "-p", "NTPSynchronized", "--value"];
        said(&argv).trim() == "yes" || is_tracked(&said(&["chronyc", "-n", "tracking"]))
    }

    /// Number of objects that k3s' own client finds.
    pub(super) fn names(&self, wanted: &[&str]) -> usize {
        let argv = [&["get"], wanted, &["-o", "name"]].concat();
        let ended = self.kubectl(&argv).ok().filter(ProcessOutput::success);
        ended.map_or(0, |ended| ended.stdout.lines().count())
    }
}

/// Returns whether k3s renews a certificate when it starts.
fn is_renewed(path: &str) -> bool {
    !path.ends_with("-ca.crt") && !path.ends_with("-ca.nochain.crt")
}

/// Days until a certificate ends.
fn days_until(end: Wall, now: Now) -> i64 {
    (end.millis() - now.wall.millis()).div_euclid(86_400_000)
}

/// Namespace of CoreDNS.
const DNS_NAMESPACE: &str = "kube-system";
/// Beginning of the faults about certificates.
const CERTIFICATES: &str = "k3s.certificates";
/// Fault of certificates that end in weeks.
const END: &str = "k3s.certificates-end";
/// Fault of an image that an archive brings back.
const GONE: &str = "k3s.images";
/// Faults whose repair waits for the window.
const CAN_WAIT: [&str; 2] = [END, "k3s.images-unpinned"];
/// Fault of certificates that have ended.
const ENDED: &str = "k3s.certificates-ended";
/// Reason not to restart a server that may be one of several.
const UNCOUNTED: &str = "the API does not say how many servers the cluster has, and several restart one after the other: restart this one by hand, \
    once all others are Ready";
/// Fault of an address that changed.
const ADDRESS: &str = "k3s.node-address";
/// Label of servers.
pub(super) const SERVERS: &str = "node-role.kubernetes.io/control-plane";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        k3s,
        time::{Mono, Now},
    };

    #[test]
    fn a_member_of_etcd_that_cannot_count_the_others_does_not_restart_for_certificates() {
        let root = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(root.path(), &root.path().join("keeper"));
        let note = Managed {
            data_dir: k3s::DATA_DIR.to_owned(),
            node: "box".to_owned(),
            ..Managed::default()
        };
        let order = |id| Order {
            fault: faults::of(id).unwrap(),
            repair: Repair::Restart,
            seen: String::new(),
        };
        let dated = order("k3s.certificates-end");
        let etcd = format!("{}/server/db/etcd/", k3s::DATA_DIR);
        let etcd = keeper.system.path(&etcd);
        std::fs::create_dir_all(&etcd).unwrap();
        files::replace(&etcd.join("name"), b"box-1a2b3c4d", 0o600).unwrap();
        assert_eq!(
            keeper.turn(&dated, &note),
            Ok(false),
            "SQLite: the only one"
        );
        std::fs::create_dir_all(etcd.join("member/wal")).unwrap();
        let why = keeper.turn(&dated, &note).unwrap_err();
        assert!(why.contains("how many servers"), "{why}");
        // What is broken is restarted all the same: the API of such a one answers nobody.
        assert_eq!(keeper.turn(&order(ENDED), &note), Ok(false));
        assert_eq!(keeper.turn(&order("k3s.api-silent"), &note), Ok(false));
    }

    #[test]
    fn a_certificate_that_a_restart_does_not_renew_causes_no_other_and_hides_none() {
        let root = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(root.path(), &root.path().join("keeper"));
        let folder = root.path().join("d/server/tls");
        std::fs::create_dir_all(&folder).unwrap();
        let put = |name: &str, year| {
            let mut made = rcgen::CertificateParams::default();
            made.not_after = rcgen::date_time_ymd(year, 1, 1);
            let made = made.self_signed(&rcgen::KeyPair::generate().unwrap());
            files::replace(&folder.join(name), made.unwrap().pem().as_bytes(), 0o600).unwrap();
        };
        put("stale.crt", 2019);
        put("own.crt", 2020);
        put("server-ca.crt", 2018);
        put("server-ca.nochain.crt", 2018);
        let note = Managed {
            data_dir: "/d".to_owned(),
            ..Managed::default()
        };
        let system = &keeper.system;
        let ending = |watch_state: &WatchState| {
            let found = system.certificate("/d", clock::now(), watch_state)?;
            Some((found.0, found.1 < RENEWED_DAYS))
        };
        let mut watch_state = WatchState::default();
        let state = K3sState {
            certificate: system.certificate("/d", clock::now(), &watch_state),
            ..K3sState::default()
        };
        assert_eq!(
            ending(&watch_state),
            Some(("/d/server/tls/stale.crt".to_owned(), true))
        );
        // The restart.
        put("own.crt", 2099);
        let error = system
            .has_renewed(&note, &state, &mut watch_state)
            .unwrap_err();
        assert!(error.sentence().contains("stale.crt"), "{error}");
        watch_state = WatchState::parse(&watch_state.text());
        assert_eq!(
            ending(&watch_state),
            Some(("/d/server/tls/own.crt".to_owned(), false))
        );
        // Years later.
        put("own.crt", 2021);
        assert_eq!(
            ending(&watch_state),
            Some(("/d/server/tls/own.crt".to_owned(), true))
        );
        put("own.crt", 2099);
        let state = K3sState {
            certificate: Some(("/d/server/tls/own.crt".to_owned(), -1)),
            ..K3sState::default()
        };
        assert!(system.has_renewed(&note, &state, &mut watch_state).is_ok());
    }

    #[test]
    fn a_certificate_that_nothing_renews_holds_up_none_that_is() {
        let root = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(root.path(), &root.path().join("keeper"));
        let folder = root.path().join("d/server/tls");
        std::fs::create_dir_all(&folder).unwrap();
        let now = clock::now();
        // Nothing says here that the clock is right.
        let put = |name: &str, days: i64| {
            let mut made = rcgen::CertificateParams::default();
            let end = now.wall.millis() / 1000 + days * 86_400;
            made.not_after =
                rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(end.unsigned_abs());
            let made = made.self_signed(&rcgen::KeyPair::generate().unwrap());
            files::replace(&folder.join(name), made.unwrap().pem().as_bytes(), 0o600).unwrap();
        };
        // Of a version that made it once.
        put("client-kube-proxy.crt", -400);
        put("serving-kube-apiserver.crt", 60);
        let system = &keeper.system;
        let doubt =
            |watch_state: &WatchState| system.clock("/d", watch_state, Wall::default()).doubt();
        let mut watch_state = WatchState::default();
        assert_eq!(
            doubt(&watch_state),
            None,
            "one restart shows whether it is renewed"
        );
        let note = Managed {
            data_dir: "/d".to_owned(),
            ..Managed::default()
        };
        put("serving-kube-apiserver.crt", 364);
        assert!(
            system
                .has_renewed(&note, &K3sState::default(), &mut watch_state)
                .is_ok()
        );
        assert!(doubt(&watch_state).unwrap().contains("10 days before"));
        put("serving-kube-apiserver.crt", 8);
        assert_eq!(doubt(&watch_state), None);
        let found = system.certificate("/d", now, &watch_state).unwrap();
        assert!(found.0.ends_with("serving-kube-apiserver.crt"), "{found:?}");
    }

    #[test]
    fn what_ended_containerd_is_read_from_its_own_log_and_at_no_other_time() {
        let root = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(root.path(), &root.path().join("keeper"));
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            files::replace(&path, text.as_bytes(), 0o600).unwrap();
        };
        put(
            "d/agent/containerd/containerd.log",
            "level=fatal msg=\"Failed to run CRI service\"\n",
        );
        for (said, is_read) in [
            (
                "level=error msg=\"Shutdown request received: containerd exited: exit status 1\"\n",
                true,
            ),
            ("containerd: exit status 1\n", true),
            ("level=info msg=\"Containerd is now running\"\n", false),
        ] {
            put("var/log/k3s.log", said);
            let log = keeper.system.log_of_parts("/d");
            assert!(log.starts_with(said));
            assert_eq!(log.contains("Failed to run CRI service"), is_read, "{log}");
        }
    }

    #[test]
    fn a_restart_for_certificates_waits_for_the_window() {
        let root = tempfile::tempdir().unwrap();
        let date = root.path().join("usr/sbin/date");
        std::fs::create_dir_all(root.path().join("usr/sbin")).unwrap();
        files::replace(&date, b"#!/bin/sh\necho 12:00\n", 0o755).unwrap();
        let keeper = Keeper::new(root.path(), &root.path().join("keeper"));
        let note = Managed::default();
        let state = K3sState {
            service: Service::parse("ActiveState=active"),
            api: Some(Api::Node(Node::parse("condition|Ready|True|fine").unwrap())),
            certificate: Some(("a.crt".to_owned(), 20)),
            ..K3sState::default()
        };
        let at = |seconds: u64| Now {
            mono: Mono::since_boot(Duration::from_secs(seconds)),
            wall: Wall::default(),
        };
        for (window, waits) in [("02:00-05:00", true), ("11:00-13:00", false)] {
            let mut watch_state = WatchState::default();
            watch_state.observe(&state, at(1000), true);
            let order = watch_state.observe(&state, at(5000), true).remove(0);
            let wanted = WatchOptions {
                repairs: true,
                backups: None,
                window: Window::parse(window),
                group: None,
                built: Wall::default(),
            };
            let done = keeper.repair(&order, &note, &mut watch_state, (&state, &wanted));
            assert!(matches!(done.unwrap(), Attempt::HeldUp));
            // Here nothing says that the clock is synchronized, which is what holds it up then.
            assert_eq!(watch_state.escalated().is_empty(), waits, "{window}");
        }
    }

    #[test]
    fn an_interface_of_a_vpn_fixes_the_address_as_an_address_does() {
        let unit = "etc/systemd/system/k3s.service";
        let config = "etc/rancher/k3s/config.yaml";
        for (path, text, is_fixed) in [
            (config, "node-label: a=b\n", false),
            (config, "node-ip: 192.0.2.7\n", true),
            (config, "flannel-iface: tailscale0\n", true),
            (config, "vpn-auth-file: /root/vpn\n", true),
            ("etc/default/k3s", "K3S_VPN_AUTH=name=tailscale\n", true),
            ("etc/default/k3s", "K3S_TOKEN=x\n", false),
            (
                unit,
                "[Service]\nExecStart=/usr/local/bin/k3s server --flannel-iface wg0\n",
                true,
            ),
            // Nobody can say.
            (config, "data-dir: &data /srv\nnode-ip: *data\n", true),
        ] {
            let root = tempfile::tempdir().unwrap();
            let put = |path: &str, text: &str| {
                let path = root.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                files::replace(&path, text.as_bytes(), 0o600).unwrap();
            };
            put("run/systemd/system/x", "");
            put(unit, "[Service]\nExecStart=/usr/local/bin/k3s server\n");
            put(path, text);
            let system = System::new(root.path());
            assert_eq!(system.has_fixed_address(), is_fixed, "{path} {text}");
        }
    }
}
