//! Options of the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::measure::{GROUPS, GROUPS_ON_DEMAND};
use crate::os;

/// How much is measured; each for so long that the whole takes less than ten minutes.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Names of groups; empty means all but those on demand.
    pub(crate) only: Vec<String>,
    /// True if a missed goal is a failure.
    pub(crate) is_gate: bool,
    /// True if everything is shortened: enough to see that it works, not enough for figures.
    pub(crate) is_quick: bool,
    pub(crate) agent: Option<PathBuf>,
    pub(crate) rival: Option<PathBuf>,
    pub(crate) pairs: usize,
    /// Time before an agent is at rest: the doctor looks for the first time after a minute, and the
    /// first samples are delivered.
    pub(crate) settle: Duration,
    pub(crate) idle: Duration,
    pub(crate) load: Duration,
    pub(crate) slow: Duration,
    pub(crate) downloads: usize,
    pub(crate) download_bytes: u64,
    pub(crate) starts: u32,
    pub(crate) resets: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            only: Vec::new(),
            is_gate: false,
            is_quick: false,
            agent: None,
            rival: None,
            pairs: 2000,
            settle: Duration::from_secs(120),
            idle: Duration::from_secs(60),
            load: Duration::from_secs(10),
            slow: Duration::from_secs(40),
            downloads: 5,
            download_bytes: 128_000_000,
            starts: 9,
            resets: 3,
        }
    }
}

impl Options {
    /// Returns whether a group is to be measured.
    pub(crate) fn wants(&self, group: &str) -> bool {
        if self.only.is_empty() {
            return !GROUPS_ON_DEMAND.contains(&group);
        }
        self.only.iter().any(|name| name == group)
    }

    /// Reads the command line; `None` is a wish for the usage.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            agent: os::variable("PIPEOPS_BENCH_AGENT").map(PathBuf::from),
            rival: os::variable("PIPEOPS_BENCH_RIVAL").map(PathBuf::from),
            ..Self::default()
        };
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--help" | "-h" => return Ok(None),
                "--only" => options.only = groups(&value()?)?,
                "--pairs" => options.pairs = whole(&value()?)?,
                "--downloads" => options.downloads = whole(&value()?)?,
                "--gate" => options.is_gate = true,
                "--quick" => options.hurry(),
                other => return Err(format!("unknown argument {other}")),
            }
        }
        if options.is_gate && options.is_quick {
            return Err("--gate needs figures, and --quick takes none".to_owned());
        }
        Ok(Some(options))
    }

    const fn hurry(&mut self) {
        self.is_quick = true;
        self.pairs = 300;
        self.settle = Duration::from_secs(3);
        self.idle = Duration::from_secs(10);
        self.load = Duration::from_secs(4);
        self.slow = Duration::from_secs(10);
        self.downloads = 3;
        self.starts = 3;
        self.resets = 1;
    }
}

fn groups(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    for name in &names {
        if !GROUPS.iter().any(|group| group.name == name) {
            let known: Vec<_> = GROUPS.iter().map(|group| group.name).collect();
            return Err(format!("no group {name}; there are: {}", known.join(", ")));
        }
    }
    Ok(names)
}

fn whole(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        Ok(_) | Err(_) => Err(format!("{text} is no count")),
    }
}

/// What `--help` prints.
pub(crate) fn usage() -> String {
    let groups: Vec<String> = GROUPS
        .iter()
        .map(|group| format!("  {:<12} {}", group.name, group.about))
        .collect();
    format!(
        "\
bench - measures pipeops-agent, and the existing agent beside it

usage: bench [--gate] [--only GROUP,GROUP...] [--pairs N] [--downloads N] [--quick]

  --gate       fail when a goal of tests/bench/goals.txt is missed or was not measured
  --only       measure these groups only
  --pairs      requests for the latency, of each kind (default 2000)
  --downloads  how often the large body is fetched (default 5)
  --quick      everything shortened: to see that it works, not for figures

groups, in the order in which they run:
{}

Environment: PIPEOPS_BENCH_RIVAL=/path/to/go-agent (without it the rival's figures are those
published earlier), PIPEOPS_BENCH_AGENT (default: target/dist/pipeops-agent),
PIPEOPS_BENCH_CLUSTER=DIR (a test cluster that runs; default: one of its own).
",
        groups.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Options>, String> {
        Options::parse(words.iter().map(|&word| word.to_owned()))
    }

    #[test]
    fn a_group_can_be_run_alone() {
        let options = parse(&["--only", "latency,rest"]).unwrap().unwrap();
        assert!(options.wants("latency") && options.wants("rest"));
        assert!(!options.wants("download"));
        let all = parse(&[]).unwrap().unwrap();
        assert!(all.wants("latency") && !all.wants("truth"));
        assert!(parse(&["--only", "truth"]).unwrap().unwrap().wants("truth"));
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_names_it() {
        assert!(parse(&["--only", "speed"]).unwrap_err().contains("latency"));
        assert!(parse(&["--pairs", "0"]).unwrap_err().contains('0'));
        assert!(parse(&["--pairs"]).unwrap_err().contains("--pairs"));
        assert!(parse(&["-x"]).unwrap_err().contains("-x"));
        assert!(
            parse(&["--gate", "--quick"])
                .unwrap_err()
                .contains("--quick")
        );
        assert!(parse(&["--gate"]).unwrap().unwrap().is_gate);
        assert!(parse(&["--help"]).unwrap().is_none());
    }
}
