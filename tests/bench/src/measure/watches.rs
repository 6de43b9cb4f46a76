//! Watches that are open at once, and what they cost in memory.

use std::time::Duration;

use super::{Bench, Group, Results, each};
use crate::https::Connection;
use crate::os;
use crate::process;
use crate::stats::Samples;
use crate::table::{Figure, Measured, number};

pub(crate) const WATCHES: Group = Group {
    name: "watches",
    about: "memory while 64 watches are open, each through a connection of its own",
    figures: &[Figure::new("PSS with 64 watches", "MB")],
    measure: watches,
};

/// As many as the agent lets run at once.
const COUNT: usize = 64;
/// 60 s: how long a watch may take to answer.
const DEADLINE: Duration = Duration::from_secs(60);

fn watches(bench: &mut Bench) -> Results {
    each(bench, |_, _, agent| {
        let before = process::pss_mb(agent.pid()?)?;
        let mut open = Vec::new();
        let mut refused = 0;
        for _ in 0..COUNT {
            let mut connection = Connection::open(agent.link()?, DEADLINE)?;
            let head = connection.begin("/api/v1/namespaces/default/configmaps?watch=true")?;
            if head.status == 200 {
                open.push(connection);
            } else {
                refused += 1;
            }
        }
        let mut pss = Vec::new();
        for _ in 0..20 {
            os::pause(Duration::from_millis(250));
            pss.push(process::pss_mb(agent.pid()?)?);
        }
        let note = format!(
            "{} open, {refused} refused; {} before",
            open.len(),
            number(before)
        );
        Ok(vec![Measured::new(Samples::of(pss).median(), note)])
    })
}
