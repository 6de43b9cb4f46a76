//! Attacks on releases, and trials. The keys are made here and sign nothing else.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use super::{
    Version,
    list::{Choice, List, Machine, Trigger},
    signature::PublicKey,
    signed::{KeyOrigin, Trust, remembered},
    trial::{AgentStatus, Cause, Trial, TrialVerdict},
};
use crate::core::time::{Mono, Wall};

/// A key of minisign, made from a seed.
pub(crate) struct Signer(Ed25519KeyPair, u8);

impl Signer {
    pub(crate) fn new(seed: u8) -> Self {
        Self(
            Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap(),
            seed,
        )
    }

    pub(crate) fn public(&self) -> String {
        let key = self.0.public_key();
        BASE64.encode([b"Ed", &[self.1; 8][..], key.as_ref()].concat())
    }

    fn sign(&self, message: &str) -> String {
        let signature = self.0.sign(message.as_bytes());
        BASE64.encode([b"Ed", &[self.1; 8][..], signature.as_ref()].concat())
    }

    pub(crate) fn minisig(&self, message: &str) -> Vec<u8> {
        let line = self.sign(message);
        format!("untrusted comment: x\n{line}\ntrusted comment: y\nz\n").into_bytes()
    }

    pub(crate) fn change(&self, number: u32, next: &Self) -> String {
        let key = next.public();
        let signature = self.sign(&format!("pipeops-agent key {number} {key}\n"));
        format!("# key {number} {key} {signature}\n")
    }

    pub(crate) fn trust(&self) -> Trust {
        Trust {
            key: PublicKey::parse(&self.public()).unwrap(),
            number: 0,
            origin: KeyOrigin::BuiltIn,
            sequence: 5,
            keys: 0,
        }
    }
}

pub(crate) fn list(head: &str) -> String {
    format!(
        "{head}# version 0.2.0\n# sequence 7\n# expires 2027-01-01T00:00:00Z\n# bytes 3 pipeops-agent-0.2.0-linux-amd64\nabc  pipeops-agent-0.2.0-linux-amd64\ndef  pipeops-agent_0.2.0_amd64.deb\n"
    )
}

fn refused(text: &str, signature: &[u8], trust: &Trust) -> String {
    List::verified(text.as_bytes(), signature, trust)
        .unwrap_err()
        .sentence()
}

#[test]
fn a_signed_list_names_the_program_with_its_length() {
    let (key, text) = (Signer::new(1), list(""));
    let list = List::verified(text.as_bytes(), &key.minisig(&text), &key.trust()).unwrap();
    let program = list.program("linux-amd64").unwrap();
    assert_eq!((program.bytes, program.sha256.as_str()), (3, "abc"));
    assert!(list.program("linux-arm64").is_err(), "another system");
}

#[test]
fn no_list_is_used_that_another_key_signed_or_somebody_changed() {
    let (key, text) = (Signer::new(1), list(""));
    let foreign = refused(&text, &Signer::new(2).minisig(&text), &key.trust());
    assert!(foreign.contains("signature is invalid"), "{foreign}");
    let changed = text.replace("abc", "abd");
    refused(&changed, &key.minisig(&text), &key.trust());
    refused(&text, b"", &key.trust());
    // The id of the trusted key on the signature of another.
    let forged = Signer(Ed25519KeyPair::from_seed_unchecked(&[9; 32]).unwrap(), 1);
    refused(&text, &forged.minisig(&text), &key.trust());
    // Parts of two releases.
    let other = list("# withdrawn 0.1.0\n");
    refused(&text, &key.minisig(&other), &key.trust());
}

#[test]
fn no_list_is_used_that_is_older_than_one_before() {
    let (key, text) = (Signer::new(1), list(""));
    let trust = Trust {
        sequence: 8,
        ..key.trust()
    };
    let refusal = refused(&text, &key.minisig(&text), &trust);
    assert!(refusal.contains("sequence 7 after 8"), "{refusal}");
}

#[test]
fn a_number_from_far_ahead_is_remembered_as_one_of_tomorrow() {
    let now = Wall::parse_rfc3339("2026-06-01T00:00:00Z").unwrap();
    let tomorrow = 1_780_358_400;
    assert_eq!(remembered(u64::MAX, now), tomorrow);
    assert_eq!(remembered(tomorrow - 1, now), tomorrow - 1);
    assert_eq!(remembered(7, Wall::from_millis(i64::MIN)), 0);
}

#[test]
fn a_new_key_begins_a_new_order_of_lists() {
    let [one, two] = &[1, 2].map(Signer::new);
    let text = list(&one.change(1, two));
    // The first key was stolen, and signed the highest number that there is.
    let passed = Trust {
        sequence: u64::MAX,
        ..one.trust()
    };
    let good = List::verified(text.as_bytes(), &two.minisig(&text), &passed).unwrap();
    assert_eq!((good.keys, good.sequence), (1, 7));
    // From then on the numbers of the second one count.
    let seen = Trust {
        sequence: 8,
        keys: 1,
        ..one.trust()
    };
    let refusal = refused(&text, &two.minisig(&text), &seen);
    assert!(refusal.contains("sequence 7 after 8"), "{refusal}");
    // Nor are the numbers of keys used up.
    let last = list(&one.change(u32::MAX, two));
    refused(&last, &two.minisig(&last), &one.trust());
}

#[test]
fn a_test_release_is_taken_only_with_a_key_of_the_settings() {
    let (key, text) = (Signer::new(1), list("# test\n"));
    let refusal = refused(&text, &key.minisig(&text), &key.trust());
    assert!(refusal.contains("test release"), "{refusal}");
    let own = Trust {
        origin: KeyOrigin::Settings,
        ..key.trust()
    };
    assert!(List::verified(text.as_bytes(), &key.minisig(&text), &own).is_ok());
}

#[test]
fn changes_of_the_key_are_replayed_in_order_and_never_taken_back() {
    let keys = [1, 2, 3].map(Signer::new);
    let [one, two, three] = &keys;
    let both = one.change(1, two) + &two.change(2, three);
    let text = list(&both);
    let good = List::verified(text.as_bytes(), &three.minisig(&text), &one.trust()).unwrap();
    assert_eq!(good.keys, 2);
    // A program of the second year has the second key.
    let second = Trust {
        number: 1,
        ..two.trust()
    };
    assert!(List::verified(text.as_bytes(), &three.minisig(&text), &second).is_ok());
    // So has one that came by an update, on a machine that saw the change.
    let seen = Trust { keys: 1, ..second };
    let year = list(&one.change(1, two));
    let good = List::verified(year.as_bytes(), &two.minisig(&year), &seen).unwrap();
    assert_eq!(good.keys, 1);
    // The first key signs nothing any more, with its successor in the list or without.
    refused(&text, &one.minisig(&text), &one.trust());
    let knows = Trust {
        keys: 2,
        ..one.trust()
    };
    let refusal = refused(&list(""), &one.minisig(&list("")), &knows);
    assert!(refusal.contains("its key was replaced"), "{refusal}");
    // Somebody else's key, and one that was left out.
    let stolen = list(&three.change(1, two));
    refused(&stolen, &two.minisig(&stolen), &one.trust());
    let gap = list(&two.change(2, three));
    refused(&gap, &three.minisig(&gap), &one.trust());
}

#[test]
fn a_list_without_its_facts_or_with_two_of_one_name_is_refused() {
    let key = Signer::new(1);
    let old = "abc  pipeops-agent_0.1.0_amd64.deb\n";
    assert!(refused(old, &key.minisig(old), &key.trust()).contains("no sequence"));
    let odd = list("# sequence x\n");
    refused(&odd, &key.minisig(&odd), &key.trust());
    let twice = list("") + "eee  pipeops-agent-0.2.0-linux-amd64\n";
    let list = List::verified(twice.as_bytes(), &key.minisig(&twice), &key.trust()).unwrap();
    assert!(list.program("linux-amd64").is_err());
    let endless = self::list("").replace("bytes 3", "bytes 99999999999");
    let list = List::verified(endless.as_bytes(), &key.minisig(&endless), &key.trust()).unwrap();
    assert!(list.program("linux-amd64").is_err(), "endless data");
}

#[test]
fn only_a_newer_good_release_is_installed_by_itself() {
    let key = Signer::new(1);
    let read = |head: &str| {
        let text = list(head);
        List::verified(text.as_bytes(), &key.minisig(&text), &key.trust()).unwrap()
    };
    let version = |text: &str| text.parse::<Version>().unwrap();
    let banned = [version("0.2.0")];
    let machine = |current: &str, now: &str| Machine {
        current: version(current),
        banned: &[],
        withdrawn: &[],
        not_before: Wall::default(),
        seed: "machine",
        now: Wall::parse_rfc3339(now).unwrap(),
    };
    let (early, late) = ("2026-06-01T00:00:00Z", "2027-06-01T00:00:00Z");
    let by_itself = |list: &List, machine: &Machine<'_>| list.choose(machine, Trigger::Automatic);
    let usual = read("");
    assert_eq!(by_itself(&usual, &machine("0.1.9", early)), Choice::Install);
    assert_eq!(by_itself(&usual, &machine("0.2.0", early)), Choice::Current);
    let held = |list: &List, machine: &Machine<'_>, why: &str| {
        let Choice::Held(reason) = by_itself(list, machine) else {
            panic!("{why}");
        };
        assert!(reason.contains(why), "{reason}");
    };
    held(&usual, &machine("0.3.0", early), "never goes back");
    held(&usual, &machine("0.1.9", late), "expired");
    let withdrawn = read("# withdrawn 0.2.0\n# withdrawn 0.1.0\n");
    held(&withdrawn, &machine("0.1.9", early), "withdrawn");
    // What runs cannot be refused.
    let current = by_itself(&withdrawn, &machine("0.2.0", early));
    assert_eq!(current, Choice::Current);
    held(&read("# rollout 0\n"), &machine("0.1.9", early), "0 %");
    let failed = Machine {
        banned: &banned,
        ..machine("0.1.9", early)
    };
    held(&usual, &failed, "failed on this machine");
    let resting = |until: &str| Machine {
        not_before: Wall::parse_rfc3339(until).unwrap(),
        ..machine("0.1.9", early)
    };
    let (soon, ahead) = (
        resting("2026-06-01T01:00:00Z"),
        resting("2100-01-01T00:00:00Z"),
    );
    held(&usual, &soon, "the next is after");
    assert_eq!(by_itself(&usual, &ahead), Choice::Install, "its clock");
    let knows = Machine {
        withdrawn: &banned,
        ..machine("0.1.9", early)
    };
    held(&usual, &knows, "withdrawn");
    let by_hand = usual.choose(&knows, Trigger::ByHand);
    assert!(matches!(by_hand, Choice::Held(_)), "a list from before");
    // Somebody who is there decides about all of that but a withdrawal.
    for machine in [&failed, &soon, &machine("0.1.9", late)] {
        assert_eq!(usual.choose(machine, Trigger::ByHand), Choice::Install);
    }
    let half = read("# rollout 50\n");
    let seeds: Vec<_> = (0..1000).map(|number| number.to_string()).collect();
    let chosen = seeds.iter().filter(|seed| {
        let machine = Machine {
            seed,
            ..machine("0.1.9", early)
        };
        by_itself(&half, &machine) == Choice::Install
    });
    assert!((400..600).contains(&chosen.count()));
}

#[test]
fn versions_before_a_release_are_no_updates() {
    for odd in ["0.2", "0.2.0-rc.1", "v0.2.0", "0.2.0.1", "0.+2.0", ""] {
        assert!(odd.parse::<Version>().is_err(), "{odd}");
    }
    assert!("0.10.0".parse::<Version>().unwrap() > "0.9.9".parse().unwrap());
}

/// Looks each second at what `seen` says, until there is a verdict.
fn judged(was_linked: bool, seen: impl Fn(u64) -> AgentStatus) -> (TrialVerdict, u64) {
    let at = |second| Mono::since_boot(Duration::from_secs(1000 + second));
    let mut trial = Trial::new("0.2.0", was_linked, Duration::from_secs(300), at(0));
    for second in 0..1000 {
        let verdict = trial.look(&seen(second), at(second));
        if verdict != TrialVerdict::Wait {
            return (verdict, second);
        }
    }
    panic!("no verdict");
}

fn good(up: u64) -> AgentStatus {
    AgentStatus {
        version: Some("0.2.0".to_owned()),
        up: Duration::from_secs(up),
        stores: true,
        is_linked: true,
        is_in_safe_mode: false,
    }
}

#[test]
fn a_version_that_crashed_into_safe_mode_goes_although_all_else_is_well() {
    let crashed = |second: u64| AgentStatus {
        is_in_safe_mode: second >= 20,
        ..good(second % 20)
    };
    let (verdict, second) = judged(true, crashed);
    assert_eq!((verdict, second), (TrialVerdict::Return(Cause::Silent), 20));
    assert!(Cause::Silent.bans());
    assert!(!Cause::Restarts.bans(), "the power failed");
}

#[test]
fn a_version_is_kept_once_everything_held_for_a_minute() {
    let silent_at_first = |second: u64| match second {
        0..5 => AgentStatus::default(),
        _ => good(second - 5),
    };
    assert_eq!(judged(true, silent_at_first), (TrialVerdict::Keep, 65));
    let unlinked = |second| AgentStatus {
        is_linked: false,
        ..good(second)
    };
    assert_eq!(
        judged(false, unlinked),
        (TrialVerdict::Keep, 60),
        "as before"
    );
}

#[test]
fn what_does_not_prove_itself_goes_and_only_its_own_faults_ban_it() {
    let causes = [
        (judged(true, |_| AgentStatus::default()), Cause::Silent),
        // It crashes every twenty seconds; the service manager takes five to start it.
        (
            judged(true, |second| match second % 25 {
                0..20 => good(second % 25),
                _ => AgentStatus::default(),
            }),
            Cause::Silent,
        ),
        // So fast that nobody sees it gone.
        (judged(true, |second| good(second % 30)), Cause::Silent),
        (
            judged(true, |second| AgentStatus {
                version: Some("0.1.0".to_owned()),
                ..good(second)
            }),
            Cause::Silent,
        ),
        (
            judged(true, |second| AgentStatus {
                stores: false,
                ..good(second)
            }),
            Cause::Store,
        ),
        (
            judged(true, |second| AgentStatus {
                is_linked: false,
                ..good(second)
            }),
            Cause::Link,
        ),
    ];
    for ((verdict, second), cause) in causes {
        assert_eq!((verdict, second), (TrialVerdict::Return(cause), 300));
        assert_eq!(cause.bans(), cause != Cause::Link);
    }
}

#[test]
fn a_link_that_comes_late_bans_no_version() {
    let linked = |is_linked: fn(u64) -> bool| {
        move |second| AgentStatus {
            is_linked: is_linked(second),
            ..good(second)
        }
    };
    // A network that is back at last, and one that comes and goes.
    for late in [
        linked(|second| second >= 250),
        linked(|second| second % 40 > 0),
    ] {
        let by_network = (TrialVerdict::Return(Cause::Link), 300);
        assert_eq!(judged(true, late), by_network);
        assert!(matches!(judged(false, late), (TrialVerdict::Keep, 60)));
    }
    let in_time = linked(|second| second >= 240);
    assert_eq!(judged(true, in_time), (TrialVerdict::Keep, 300));
    // One that starts again and again is at fault, whatever its link does.
    let crashes = |second| AgentStatus {
        is_linked: second >= 250,
        ..good(second % 30)
    };
    let by_version = (TrialVerdict::Return(Cause::Silent), 300);
    assert_eq!(judged(true, crashes), by_version);
}
