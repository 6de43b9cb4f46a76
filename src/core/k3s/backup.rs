//! Backups of k3s: their names, which of them are kept, and the machines that one may be restored
//! to.

use std::time::Duration;

use litemap::LiteMap;

use super::{Change, Version, change, is_node_name};
use crate::core::{
    order::{GatherExt as _, OrderExt as _},
    time::Wall,
};

/// Directory of backups.
pub const FOLDER: &str = "/var/backups/pipeops";
/// Endings of a backup, and of an encrypted one.
const ENDINGS: [&str; 2] = [".tar.gz", ".tar.gz.age"];
/// Ending of encrypted files.
pub const ENCRYPTED: &str = ".age";

/// Limits of the backups in a directory. The newest is always kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Number of backups.
    pub count: usize,
    /// Age in days.
    pub days: u32,
    /// Length of all of them.
    pub bytes: u64,
}

impl Limits {
    /// The usual ones.
    pub const USUAL: Self = Self {
        count: 7,
        days: 90,
        bytes: 2_000_000_000,
    };

    /// The wider of both in each respect.
    #[must_use]
    pub fn widest(self, other: Self) -> Self {
        Self {
            count: self.count.max(other.count),
            days: self.days.max(other.days),
            bytes: self.bytes.max(other.bytes),
        }
    }
}

/// Limits that a person gave for directories of backups, where they are wider than the usual ones:
/// a line for each directory, in fields that tabs part. A backup that nobody asked for keeps to
/// them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NamedLimits(LiteMap<String, Limits>);

/// Directories that are remembered.
const NAMED_MAX: usize = 32;

impl NamedLimits {
    /// Reads the note. A line that is not understood is as none.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let mut fields = line.split('\t');
            let limits = Limits {
                count: fields.next()?.parse().ok()?,
                days: fields.next()?.parse().ok()?,
                bytes: fields.next()?.parse().ok()?,
            };
            Some((fields.next()?.to_owned(), limits))
        });
        Self(lines.take(NAMED_MAX).gather())
    }

    /// The text of the note.
    pub fn text(&self) -> String {
        let lines = self.0.iter().map(|(folder, limits)| {
            let Limits { count, days, bytes } = limits;
            format!("{count}\t{days}\t{bytes}\t{folder}\n")
        });
        lines.collect()
    }

    /// Adds the limits of a manual backup.
    pub fn name(&mut self, folder: &str, limits: Limits) {
        self.0.remove(folder);
        let is_plain = !folder.chars().any(char::is_control);
        if is_plain && limits.widest(Limits::USUAL) != Limits::USUAL {
            self.0.insert(folder.to_owned(), limits);
        }
    }

    /// The limits of a backup that nobody asked for.
    pub fn widen(&self, folder: &str, limits: Limits) -> Limits {
        let named = self.0.get(folder);
        named.map_or(limits, |named| limits.widest(*named))
    }
}

/// A backup in a directory.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kept {
    /// Name of its file.
    pub name: String,
    /// Time at which it was taken.
    pub at: Wall,
    /// Length.
    pub bytes: u64,
}

/// Sorts backups by age, the newest first. Those of a clock that was ahead count as older than all
/// others: nobody knows their age.
pub fn sort_newest_first(backups: &mut [Kept], now: Wall) {
    let rank = |kept: &Kept| (kept.at <= now, kept.at.millis());
    backups.order_by(|one, other| (rank(other), &other.name).cmp(&(rank(one), &one.name)));
}

/// Owner of a backup, in a directory that machines with the same node name may share.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Owner<'a> {
    /// Name of the node.
    pub node: &'a str,
    /// First [`CLUSTER_DIGITS`] of the hash of the cluster's CA; empty: nobody knows it.
    pub cluster: &'a str,
}

/// Length of the part of a name that stands for the cluster.
pub const CLUSTER_DIGITS: usize = 8;

/// Form of the file of a backup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Form {
    /// Not encrypted: readable by anyone who has the file.
    Plain,
    /// Encrypted to recipients.
    Encrypted,
}

/// Name of a backup: `k3s-box-20261123T033700Z-3f9a1c07.tar.gz`, with `.age` behind it where it is
/// encrypted.
pub fn name(owner: Owner<'_>, at: Wall, form: Form) -> String {
    let [plain, encrypted] = ENDINGS;
    let ending = match form {
        Form::Plain => plain,
        Form::Encrypted => encrypted,
    };
    let Owner { node, cluster } = owner;
    let mark = if cluster.is_empty() { "" } else { "-" };
    format!("k3s-{node}-{}{mark}{cluster}{ending}", at.basic())
}

/// The owner and the time in the name of a backup.
pub fn parse_name(name: &str) -> Option<(Owner<'_>, Wall)> {
    let mut stems = ENDINGS
        .iter()
        .filter_map(|ending| name.strip_suffix(ending));
    let stem = stems.next()?.strip_prefix("k3s-")?;
    let (rest, last) = stem.rsplit_once('-')?;
    let is_cluster = last.len() == CLUSTER_DIGITS && last.bytes().all(|it| it.is_ascii_hexdigit());
    let (rest, cluster) = if is_cluster { (rest, last) } else { (stem, "") };
    let (node, time) = rest.rsplit_once('-')?;
    let (date, clock) = time.strip_suffix('Z')?.split_once('T')?;
    let digits = |text: &str, wanted: usize| {
        (text.len() == wanted && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(())
    };
    digits(date, 8)?;
    digits(clock, 6)?;
    let (year, day) = date.split_at(4);
    let (month, day) = day.split_at(2);
    let (hour, rest) = clock.split_at(2);
    let (minute, second) = rest.split_at(2);
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z");
    let at = Wall::parse_rfc3339(&text)?;
    is_node_name(node).then_some((Owner { node, cluster }, at))
}

/// The newest backups, which no age removes: a machine that was off for long has none younger.
const AGELESS: usize = 3;

/// Names of the backups that are too many, too old or too long together, the newest first.
pub fn surplus(mut found: Vec<Kept>, now: Wall, limits: Limits) -> Vec<String> {
    sort_newest_first(&mut found, now);
    let oldest = now
        .millis()
        .saturating_sub(i64::from(limits.days).saturating_mul(86_400_000));
    let (mut count, mut bytes) = (0_usize, 0_u64);
    let mut names = Vec::new();
    for kept in found {
        let all = bytes.saturating_add(kept.bytes);
        let is_young = count < AGELESS || kept.at.millis() >= oldest;
        let is_within = count < limits.count && is_young && all <= limits.bytes;
        if is_within || count == 0 {
            (count, bytes) = (count + 1, all);
        } else {
            names.push(kept.name);
        }
    }
    names
}

/// Time of the next backup by schedule. `last` is the newest backup, `managed` the time since when
/// k3s is managed here.
///
/// Machines with one schedule do not all begin at once: each waits a part of a tenth of the
/// interval longer, by the name of its node.
pub fn next(last: Option<Wall>, managed: Wall, every: Duration, node: &str, now: Wall) -> Wall {
    let every = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
    let spread = node
        .bytes()
        .fold(7_i64, |sum, byte| (sum * 31 + i64::from(byte)) % 1000);
    let later = every / 10_000 * spread;
    let due = match last {
        // The clock was ahead then: nobody knows how old it is.
        Some(last) if last > now => now.millis(),
        Some(last) => last.millis().saturating_add(every).saturating_add(later),
        None => managed.millis().saturating_add(FIRST_MS.min(every)),
    };
    Wall::from_millis(due)
}

/// Time from an installation to its first backup.
const FIRST_MS: i64 = 3_600_000;

/// A k3s: the one of a backup, or the one that it is restored to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Origin {
    pub version: Version,
    /// Name of the node.
    pub node: String,
}

/// The reason that a backup cannot be restored here, and the fix.
pub fn refusal(backup: &Origin, here: &Origin) -> Option<(String, String)> {
    if backup.node != here.node {
        let why = format!(
            "it was taken on node {}, and this is {}: Pods and volumes are bound to the node name",
            backup.node, here.node
        );
        let fix = format!(
            "install k3s here with the name of that node: sudo pipeops-agent k3s install --node-name {}",
            backup.node
        );
        return Some((why, fix));
    }
    match change(backup.version, here.version) {
        Change::None | Change::Patch | Change::Minor => None,
        Change::Refused(_) if here.version < backup.version => Some((
            format!(
                "it was taken with k3s {}, and {} does not read the datastore of a newer version",
                backup.version, here.version
            ),
            format!("install k3s {} or later first", backup.version),
        )),
        Change::Refused(_) => Some((
            format!(
                "it was taken with k3s {}, and {} is more than one minor version later, which Kubernetes does not support",
                backup.version, here.version
            ),
            format!(
                "install k3s {} first, restore, and upgrade one minor version at a time",
                backup.version
            ),
        )),
    }
}

/// Returns whether a name in an archive is one of a file that a backup has.
pub fn is_member(name: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    let is_below = ["data/server/", "etc/rancher/"]
        .iter()
        .any(|folder| name.starts_with(folder));
    is_below && !name.contains('\0') && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::DAY_MS;

    #[test]
    fn a_name_has_the_node_the_second_and_the_cluster() {
        let at = Wall::parse_rfc3339("2026-11-23T03:37:00.250Z").unwrap();
        for (cluster, form, wanted) in [
            ("", Form::Plain, "k3s-pi-4.lan-20261123T033700Z.tar.gz"),
            (
                "",
                Form::Encrypted,
                "k3s-pi-4.lan-20261123T033700Z.tar.gz.age",
            ),
            (
                "3f9a1c07",
                Form::Plain,
                "k3s-pi-4.lan-20261123T033700Z-3f9a1c07.tar.gz",
            ),
            (
                "3f9a1c07",
                Form::Encrypted,
                "k3s-pi-4.lan-20261123T033700Z-3f9a1c07.tar.gz.age",
            ),
        ] {
            let owner = Owner {
                node: "pi-4.lan",
                cluster,
            };
            let name = name(owner, at, form);
            assert_eq!(name, wanted);
            let (found, time) = parse_name(&name).unwrap();
            assert_eq!(
                (found, time.rfc3339().as_str()),
                (owner, "2026-11-23T03:37:00.000Z")
            );
        }
        let (other, _) = parse_name("k3s-box-3f9a1c07-20261123T033700Z.tar.gz").unwrap();
        assert_eq!((other.node, other.cluster), ("box-3f9a1c07", ""));
        for wrong in [
            "",
            "k3s-20261123T033700Z.tar.gz",
            "k3s-20261123T033700Z-3f9a1c07.tar.gz",
            "k3s-pi-20261123T033700Z-3f9a1c0.tar.gz",
            "k3s-pi-20261123T033700Z-3f9a1c07-3f9a1c07.tar.gz",
            "k3s-Pi-20261123T033700Z.tar.gz",
            "k3s-pi-20261123T033700Z.tar",
            "k3s-pi-20261123T033700Z.age",
            "k3s-pi-2026112T033700Z.tar.gz",
            "k3s-pi-20261323T033700Z.tar.gz",
            "k3s-../x-20261123T033700Z.tar.gz",
        ] {
            assert_eq!(parse_name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_newest_stays_and_the_rest_within_count_age_and_bytes() {
        let kept = |day: i64, bytes: u64| Kept {
            name: format!("day{day}"),
            at: Wall::from_millis(day * DAY_MS),
            bytes,
        };
        let limits = Limits {
            count: 3,
            days: 10,
            bytes: 100,
        };
        let gone = |found: Vec<Kept>| surplus(found, Wall::from_millis(100 * DAY_MS), limits);
        let all = (96..100).map(|day| kept(day, 10)).collect();
        assert_eq!(gone(all), ["day96"], "count");
        let old = (1..4).chain([99]).map(|day| kept(day, 1)).collect();
        let many = Limits { count: 9, ..limits };
        let now = Wall::from_millis(100 * DAY_MS);
        assert_eq!(
            surplus(old, now, many),
            ["day1"],
            "age, of all but the newest three"
        );
        assert_eq!(gone(vec![kept(98, 60), kept(99, 60)]), ["day98"], "bytes");
        assert!(gone(vec![kept(1, 1000)]).is_empty(), "the only one");
        let ahead = [kept(99, 10), kept(200, 10), kept(98, 10), kept(97, 10)];
        assert_eq!(gone(ahead.into()), ["day200"], "of a clock that was ahead");
    }

    #[test]
    fn wider_limits_of_a_person_hold_for_their_directory_until_usual_ones_are_given() {
        let wide = Limits {
            count: 30,
            ..Limits::USUAL
        };
        let mut named = NamedLimits::default();
        named.name("/mnt/ssd/my backups", wide);
        named.name("/other", Limits::USUAL);
        named = NamedLimits::parse(&format!("x\n1\t2\n{}", named.text()));
        let narrow = Limits {
            count: 2,
            ..Limits::USUAL
        };
        assert_eq!(named.widen("/mnt/ssd/my backups", narrow), wide);
        assert_eq!(named.widen("/other", narrow), narrow);
        named.name("/mnt/ssd/my backups", narrow);
        assert_eq!(named.widen("/mnt/ssd/my backups", narrow), narrow);
        assert_eq!(named.text(), "");
    }

    #[test]
    fn a_backup_goes_to_its_own_node_and_to_no_older_k3s() {
        let origin = |version: &str, node: &str| Origin {
            version: version.parse().unwrap(),
            node: node.to_owned(),
        };
        let backup = origin("v1.34.4+k3s1", "a");
        for (here, word) in [
            (origin("v1.34.4+k3s1", "a"), None),
            (origin("v1.35.1+k3s1", "a"), None),
            (origin("v1.34.4+k3s1", "b"), Some("--node-name a")),
            (origin("v1.34.3+k3s1", "a"), Some("v1.34.4+k3s1 or later")),
            (
                origin("v1.36.0+k3s1", "a"),
                Some("one minor version at a time"),
            ),
        ] {
            let found = refusal(&backup, &here).map(|(_, fix)| fix);
            assert_eq!(found.is_some(), word.is_some(), "{here:?} {found:?}");
            assert!(found.unwrap_or_default().contains(word.unwrap_or_default()));
        }
    }

    #[test]
    fn only_files_of_a_backup_are_members() {
        assert!(
            is_member("data/server/tls/server-ca.crt") && is_member("etc/rancher/node/password")
        );
        for wrong in [
            "",
            "data/server/",
            "data/server/../x",
            "/etc/rancher/x",
            "etc/passwd",
            "data/server//x",
            "data/server/./x",
            "data/agent/x",
        ] {
            assert!(!is_member(wrong), "{wrong}");
        }
    }

    #[test]
    fn the_next_backup_is_due_an_interval_and_a_little_after_the_last() {
        let day = Duration::from_hours(24);
        let at = |text: &str| Wall::parse_rfc3339(text).unwrap();
        let now = at("2026-11-23T12:00:00Z");
        let managed = at("2026-11-01T00:00:00Z");
        let last = at("2026-11-23T03:00:00Z");
        let due = |last, node| next(last, managed, day, node, now).millis();
        assert_eq!(due(None, "a"), managed.millis() + FIRST_MS);
        let wait = due(Some(last), "a") - last.millis() - 86_400_000;
        assert!((0..8_640_000).contains(&wait), "{wait}");
        assert_ne!(due(Some(last), "a"), due(Some(last), "b"));
        // The clock was ahead when it was made.
        assert_eq!(due(Some(at("2031-01-01T00:00:00Z")), "a"), now.millis());
    }
}
