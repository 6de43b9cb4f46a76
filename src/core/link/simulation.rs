//! Ten thousand sessions against a model of a control plane that is slow, forgetful, wrong, silent
//! and gone, on a network that is cut, and with clocks that jump. After each step the invariants
//! named in [`Check`] must hold; a failure prints its seed.

use super::*;

/// Invariants under test, by name.
struct Check {
    socket: Socket,
    dials: VecDeque<Mono>,
    ever_known: bool,
    last_heard: Mono,
    last_ping: Mono,
    is_stopped: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Socket {
    None,
    Dialing(Endpoint),
    Open(Endpoint),
}

struct World {
    seed: u64,
    random: fastrand::Rng,
    link: Link,
    now: Now,
    check: Check,
    /// Messages on their way to the agent, each with its time of arrival: they may overtake each
    /// other.
    inbound: Vec<(Mono, Input)>,
    /// The registration that waits for an answer.
    registration: Option<String>,
    mood: Mood,
}

/// Current behaviour of control plane and network.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Healthy,
    Gone,
    Refusing,
    Silent,
    Forgetful,
    Wrong,
    Dropping,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let now = Now {
            mono: Mono::since_boot(Duration::from_secs(5)),
            wall: Wall::from_millis(0),
        };
        let membership = random.bool().then(|| Membership {
            cluster_id: "old".to_owned(),
            cluster_uuid: "old".to_owned(),
            gateway_url: random.bool().then(|| "wss://old/ws".to_owned()),
        });
        let ever_known = membership.is_some();
        let settings = Settings {
            registers_first: random.bool(),
            ..Settings::new("agent-sim")
        };
        let link = Link::new(settings, membership, seed, now);
        let check = Check {
            socket: Socket::None,
            dials: VecDeque::new(),
            ever_known,
            last_heard: now.mono,
            last_ping: now.mono,
            is_stopped: false,
        };
        Self {
            seed,
            random,
            link,
            now,
            check,
            inbound: Vec::new(),
            registration: None,
            mood: Mood::Healthy,
        }
    }

    fn fail(&self, invariant: &str) -> ! {
        panic!(
            "seed {}: {invariant}; state {:?} mood {:?} socket {:?}",
            self.seed,
            self.link.state(),
            self.mood,
            self.check.socket
        )
    }

    fn require(&self, holds: bool, invariant: &str) {
        if !holds {
            self.fail(invariant);
        }
    }

    fn handle(&mut self, input: Input) {
        self.link.handle(input, self.now);
        self.drain();
    }

    /// Carries out what the machine asks for until it waits; returns until when.
    fn drain(&mut self) -> Mono {
        for _ in 0..1000 {
            match self.link.poll(self.now) {
                Output::Wait(until, _) => {
                    let is_busy =
                        matches!(self.check.socket, Socket::Dialing(_)) || !self.check.is_stopped;
                    self.require(
                        !is_busy || until > self.now.mono,
                        "a wait ends in the future",
                    );
                    return until;
                }
                Output::Dial(endpoint) => self.dialed(endpoint),
                Output::Send(message) => self.sent(message),
                Output::Ping => {
                    self.require(
                        matches!(self.check.socket, Socket::Open(_)),
                        "pings go to an open socket",
                    );
                    self.check.last_ping = self.now.mono;
                    self.answer_ping();
                }
                Output::Persist(membership) => {
                    self.require(
                        !membership.cluster_id.is_empty(),
                        "no empty cluster id is persisted",
                    );
                    self.check.ever_known = true;
                }
                Output::Registered => {}
                Output::Close { .. } => {
                    self.require(
                        self.check.socket != Socket::None,
                        "only what is open is closed",
                    );
                    self.closed();
                }
                Output::Log(line) => self.require(!line.contains('\n'), "a log line is one line"),
            }
        }
        self.fail("the machine comes to rest");
    }

    fn closed(&mut self) {
        self.check.socket = Socket::None;
        self.registration = None;
        self.inbound.clear();
    }

    fn dialed(&mut self, endpoint: Endpoint) {
        self.require(!self.check.is_stopped, "a stopped link dials nobody");
        self.require(
            self.check.socket == Socket::None,
            "there is never a second socket",
        );
        self.check.dials.push_back(self.now.mono);
        let minute_ago = self
            .now
            .mono
            .elapsed_since_boot()
            .saturating_sub(Duration::from_secs(60));
        while self
            .check
            .dials
            .front()
            .is_some_and(|dial| dial.elapsed_since_boot() < minute_ago)
        {
            self.check.dials.pop_front();
        }
        // 0.5 + 1 + 2 + 4 + 8 + 16 s are six failures; each may be two dials (controller, then
        // gateway), and a good session starts anew.
        self.require(self.check.dials.len() <= 20, "dials are rare");
        self.check.socket = Socket::Dialing(endpoint);
    }

    fn sent(&mut self, message: Message) {
        let Socket::Open(endpoint) = self.check.socket.clone() else {
            self.fail("messages go to an open socket")
        };
        match message {
            Message::Register {
                request_id,
                cluster_id,
            } => {
                self.require(
                    endpoint == Endpoint::Controller,
                    "only the controller sees a registration",
                );
                self.require(
                    cluster_id.as_deref() != Some(""),
                    "a registration has no empty id",
                );
                self.registration = Some(request_id);
                self.answer_registration(cluster_id);
            }
            Message::Heartbeat { cluster_id } => {
                self.require(self.link.is_ready(), "only a ready link beats");
                self.require(!cluster_id.is_empty(), "a heartbeat names its cluster");
            }
            Message::Pong { .. } | Message::Fallback { .. } => {}
        }
    }

    fn arrives(&mut self, input: Input, within_ms: u64) {
        let at = self
            .now
            .mono
            .after(Duration::from_millis(self.random.u64(0..=within_ms)));
        self.inbound.push((at, input));
    }

    fn answer_ping(&mut self) {
        if !matches!(self.mood, Mood::Silent | Mood::Gone) {
            self.arrives(Input::Heard, 2000);
        }
    }

    fn answer_registration(&mut self, cluster_id: Option<String>) {
        let Some(request_id) = self.registration.clone() else {
            return;
        };
        let gateway_url = self
            .random
            .bool()
            .then(|| format!("wss://gw{}/ws", self.random.u8(0..3)));
        let cluster_id = cluster_id.unwrap_or_else(|| format!("c-{}", self.random.u8(..)));
        let good = Membership {
            cluster_uuid: cluster_id.clone(),
            cluster_id,
            gateway_url,
        };
        let reply = |request_id: &str, membership| Input::RegisterSuccess {
            request_id: Some(request_id.to_owned()),
            membership,
        };
        match self.mood {
            Mood::Healthy | Mood::Dropping => {
                if self.random.u8(0..4) == 0 {
                    self.arrives(Input::RegisterInProgress, 1000);
                }
                self.arrives(reply(&request_id, Some(good)), 3000);
            }
            Mood::Forgetful => {
                self.arrives(
                    Input::Refusal {
                        request_id: None,
                        text: "cluster not registered".to_owned(),
                    },
                    500,
                );
                self.arrives(reply(&request_id, Some(good)), 40_000);
            }
            Mood::Wrong => {
                self.arrives(reply("req_0_other", Some(good)), 500);
                self.arrives(reply(&request_id, None), 500);
                self.arrives(
                    Input::Refusal {
                        request_id: Some(request_id),
                        text: "internal".to_owned(),
                    },
                    900,
                );
            }
            Mood::Gone | Mood::Refusing | Mood::Silent => {}
        }
    }

    /// One thing happens.
    fn step(&mut self) {
        let until = self.drain();
        if self.random.u8(0..40) == 0 {
            self.change_mood();
        }
        self.disturb();
        let arrival = self.inbound.iter().map(|(at, _)| *at).min();
        let dial_ends =
            matches!(self.check.socket, Socket::Dialing(_)) && self.mood != Mood::Silent;
        let mut to = arrival.map_or(until, |at| at.min(until)).max(self.now.mono);
        if dial_ends {
            to = to.min(
                self.now
                    .mono
                    .after(Duration::from_millis(self.random.u64(1..1500))),
            );
        }
        // Suspend: the clock that only moves forward makes a leap.
        if self.random.u16(0..500) == 0 {
            to = to.after(Duration::from_secs(self.random.u64(60..100_000)));
        }
        self.now.mono = to;
        // The wall clock lies: forwards, backwards, decades.
        let drift = if self.random.u8(0..50) == 0 {
            self.random.i64(-2_000_000_000_000..2_000_000_000_000)
        } else {
            100
        };
        self.now.wall = Wall::from_millis(self.now.wall.millis().saturating_add(drift));
        if dial_ends && arrival.is_none_or(|at| at > to) {
            self.end_dial();
        }
        self.deliver();
        self.drain();
        self.invariants();
    }

    fn change_mood(&mut self) {
        self.mood = match self.random.u8(0..8) {
            0 => Mood::Gone,
            1 => Mood::Refusing,
            2 => Mood::Silent,
            3 => Mood::Forgetful,
            4 => Mood::Wrong,
            5 => Mood::Dropping,
            _ => Mood::Healthy,
        };
    }

    fn disturb(&mut self) {
        let is_open = matches!(self.check.socket, Socket::Open(_));
        match self.random.u8(0..60) {
            0 if is_open => {
                self.closed();
                self.handle(Input::Lost("cut".to_owned()));
            }
            1 if is_open => self.receive(Input::Ping {
                request_id: Some("p".to_owned()),
            }),
            2 if is_open => {
                let message_type = format!("type-{}", self.random.u16(..));
                self.receive(Input::Unknown {
                    message_type,
                    request_id: None,
                });
            }
            3 => self.handle(Input::TokenChanged),
            4 => self.handle(Input::Lost("late news of an old socket".to_owned())),
            5 if is_open => self.receive(Input::Refusal {
                request_id: None,
                text: "cluster not found".to_owned(),
            }),
            6 if self.random.u8(0..4) == 0 => {
                let holder = self.holder();
                self.handle(Input::Hold(holder, "another agent".to_owned()));
            }
            7 | 8 => {
                let holder = self.holder();
                self.handle(Input::Release(holder));
            }
            10 if self.random.u8(0..4) == 0 => self.handle(Input::RegisterAgain),
            11 => self.handle(Input::AdoptClusterId("c-told".to_owned())),
            9 if self.mood == Mood::Dropping && is_open => {
                self.closed();
                self.handle(Input::Lost("dropped".to_owned()));
            }
            _ => {}
        }
        // `Lost` for a socket that is open makes the machine forget it; so must the model.
        if matches!(
            self.link.state(),
            LinkState::Waiting | LinkState::Refused | LinkState::StandingBy
        ) && is_open
        {
            self.closed();
        }
    }

    fn holder(&mut self) -> Holder {
        if self.random.bool() {
            Holder::GoAgent
        } else {
            Holder::Lease
        }
    }

    fn end_dial(&mut self) {
        let Socket::Dialing(endpoint) = self.check.socket.clone() else {
            return;
        };
        let fails = self.random.u8(0..10) == 0;
        let failure = match self.mood {
            Mood::Refusing => Some((DialFailure::Refused, "HTTP 401")),
            Mood::Gone => Some((DialFailure::Network, "no route")),
            _ if fails => Some((
                DialFailure::Status(503, Some(Duration::from_secs(self.random.u64(0..100)))),
                "HTTP 503",
            )),
            Mood::Healthy | Mood::Silent | Mood::Forgetful | Mood::Wrong | Mood::Dropping => None,
        };
        if let Some((failure, why)) = failure {
            self.check.socket = Socket::None;
            self.handle(Input::DialFailed(failure, why.to_owned()));
        } else {
            self.check.socket = Socket::Open(endpoint);
            self.check.last_heard = self.now.mono;
            self.check.last_ping = self.now.mono;
            self.handle(Input::Connected);
        }
    }

    fn deliver(&mut self) {
        while let Some(next) = self.inbound.iter().position(|(at, _)| *at <= self.now.mono) {
            let (_, input) = self.inbound.swap_remove(next);
            self.receive(input);
        }
    }

    fn receive(&mut self, input: Input) {
        self.check.last_heard = self.now.mono;
        let was_ready = self.link.is_ready();
        self.handle(input);
        if !was_ready {
            self.check.last_ping = self.now.mono;
        }
    }

    fn invariants(&self) {
        self.require(
            (self.link.state() == LinkState::StandingBy)
                == self.link.status(self.now).held_by.is_some(),
            "a link stands by while somebody holds it, and only then",
        );
        let knows = self
            .link
            .membership()
            .is_some_and(|known| !known.cluster_id.is_empty());
        self.require(
            knows || !self.check.ever_known,
            "a cluster id is never forgotten",
        );
        if self.link.is_ready() {
            self.require(
                matches!(self.check.socket, Socket::Open(_)),
                "ready means that a socket is open",
            );
            let silence = self.now.mono.since(self.check.last_heard);
            self.require(
                silence <= Duration::from_secs(60),
                "a silent peer is given up within a minute",
            );
            let quiet = self.now.mono.since(self.check.last_ping);
            self.require(
                quiet <= Duration::from_secs(12),
                "a ready link pings every ten seconds",
            );
        }
        self.require(
            self.link.outages().len() <= OUTAGES_MAX,
            "the history is bounded",
        );
        self.require(
            self.link.unknown_types.len() <= UNKNOWN_TYPES_MAX,
            "unknown types are bounded",
        );
    }

    /// After any history a healthy control plane gets its link back, soon, and hears what it has
    /// to.
    fn recovers(&mut self) {
        self.mood = Mood::Healthy;
        self.inbound.clear();
        self.handle(Input::Release(Holder::GoAgent));
        self.handle(Input::Release(Holder::Lease));
        let began = self.now.mono;
        while !self.link.is_ready() || self.link.owes_registration() {
            let until = self.drain();
            let arrival = self.inbound.iter().map(|(at, _)| *at).min();
            self.now.mono = arrival.map_or(until, |at| at.min(until)).max(self.now.mono);
            if let Socket::Dialing(endpoint) = self.check.socket.clone() {
                self.check.socket = Socket::Open(endpoint);
                self.check.last_heard = self.now.mono;
                self.check.last_ping = self.now.mono;
                self.handle(Input::Connected);
            }
            self.deliver();
            let passed = self.now.mono.since(began);
            self.require(
                passed < Duration::from_secs(1200) + OWED_FOR,
                "a healthy control plane gets its link and what it has to hear",
            );
        }
    }
}

#[test]
fn ten_thousand_sessions_keep_the_invariants() {
    let mut ready = 0;
    for seed in 0..10_000 {
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.step();
        }
        ready += usize::from(world.link.is_ready());
        world.recovers();
        world.handle(Input::Stop);
        world.check.is_stopped = true;
        world.require(
            world.check.socket == Socket::None,
            "a stopped link closes its socket",
        );
        world.now.mono = world.now.mono.after(Duration::from_secs(1_000_000));
        world.drain();
    }
    assert!(ready > 1000, "the model lets sessions succeed: {ready}");
}
