//! Large answers: how fast they pass, and what they cost in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use plane::Mode;

use super::{Bench, Group, Results, all, each, peak_during};
use crate::agent::Agent;
use crate::cluster::Cluster;
use crate::https::{Address, Connection, Go};
use crate::os;
use crate::process;
use crate::relays::Relays;
use crate::stats::Samples;
use crate::table::{Figure, Measured, number};

pub(crate) const DOWNLOAD: Group = Group {
    name: "download",
    about: "a streamed body from a pod through the link against directly",
    figures: &[
        Figure {
            name: "streamed download, of a direct one",
            unit: "%",
            published: Some(28.0),
        },
        Figure::new("streamed download", "MB/s"),
        Figure::new("processor for a streamed GB", "s"),
        Figure::new("streamed download, of two TLS relays", "%"),
    ],
    measure: download,
};

pub(crate) const LOAD: Group = Group {
    name: "load",
    about: "memory while eight clients and two downloads are served",
    figures: &[
        Figure::new("PSS under proxy load, largest", "MB"),
        Figure::new("small GETs under proxy load", "1/s"),
    ],
    measure: load,
};

pub(crate) const BUFFERED: Group = Group {
    name: "buffered",
    about: "eight answers at once, each in one message",
    figures: &[
        Figure::new("8 buffered answers of 7 MB, peak memory", "MB"),
        Figure {
            name: "8 buffered answers of 48 MB, peak memory",
            unit: "MB",
            published: Some(1750.0),
        },
    ],
    measure: buffered,
};

/// 60 s: a large answer that stands still for longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);

fn download(bench: &mut Bench) -> Results {
    all(bench, |bench| {
        let bytes = bench.options.download_bytes;
        let direct = bench.cluster.service()?;
        let path = format!("/bytes?n={bytes}");
        let linked = format!("{}{path}", Cluster::service_path());
        let relays = Relays::start(&bench.cluster.ca_file.with_file_name("relays.pem"), &direct);
        let mut sources = vec![(direct, path.clone(), None)];
        for agent in &mut bench.agents {
            sources.push((agent.link()?.clone(), linked.clone(), Some(agent.pid()?)));
        }
        // The last one: what follows the first are the agents.
        if let Ok(relays) = &relays {
            sources.push((relays.address().clone(), path, None));
        }
        let mut rates = vec![Vec::new(); sources.len()];
        let mut cpu = vec![Vec::new(); sources.len()];
        for _ in 0..bench.options.downloads {
            for (place, (address, path, pid)) in sources.iter().enumerate() {
                let before = pid.map(process::cpu_time).transpose()?;
                let rate = rate(address, path, bytes)?;
                let after = pid.map(process::cpu_time).transpose()?;
                rates
                    .get_mut(place)
                    .into_iter()
                    .for_each(|rates| rates.push(rate));
                if let (Some(before), Some(after), Some(cpu)) = (before, after, cpu.get_mut(place))
                {
                    let used = after.saturating_sub(before).as_secs_f64();
                    cpu.push(used / (os::float(bytes) / 1e9));
                }
            }
        }
        let relayed = match &relays {
            Ok(_) => Ok(Samples::of(rates.pop().unwrap_or_default())),
            Err(why) => Err(why.clone()),
        };
        let mut results = rates
            .into_iter()
            .zip(cpu)
            .map(|(rates, cpu)| (Samples::of(rates), Samples::of(cpu)));
        let (direct, _) = results.next().unwrap_or_default();
        Ok(results
            .map(|(link, cpu)| {
                let mut figures = compared(&direct, &link, &cpu);
                figures.push(beside_relays(&direct, &link, &relayed));
                figures
            })
            .collect())
    })
}

fn compared(direct: &Samples, link: &Samples, cpu: &Samples) -> Vec<Measured> {
    vec![
        Measured::new(
            link.median() / direct.median() * 100.0,
            format!(
                "direct {} MB/s ({})",
                number(direct.median()),
                direct.spread()
            ),
        ),
        Measured::new(link.median(), link.spread()),
        Measured::new(cpu.median(), cpu.spread()),
    ]
}

/// The link in percent of two relays, which are themselves so many percent of a direct download.
fn beside_relays(direct: &Samples, link: &Samples, relayed: &Result<Samples, String>) -> Measured {
    match relayed {
        Err(why) => Measured::missing(why.as_str()),
        Ok(relayed) => Measured::new(
            link.median() / relayed.median() * 100.0,
            format!(
                "two socat relays {} MB/s ({}), {} % of direct",
                number(relayed.median()),
                relayed.spread(),
                number(relayed.median() / direct.median() * 100.0),
            ),
        ),
    }
}

/// MB/s of one download on a connection of its own that is already open.
fn rate(address: &Address, path: &str, bytes: u64) -> Result<f64, String> {
    let mut connection = Connection::open(address, DEADLINE)?;
    // The handshake is not part of the download.
    let (_, _) = connection.get(&path.replace(&format!("n={bytes}"), "n=1"))?;
    let start = os::now();
    let (status, read) = connection.get(path)?;
    let seconds = os::since(start).as_secs_f64();
    if status != 200 || read != bytes {
        return Err(format!(
            "GET {path} was answered {status} with {read} bytes"
        ));
    }
    Ok(os::float(bytes) / 1e6 / seconds)
}

/// How many clients ask at once: as many as the agent runs side by side.
const CLIENTS: usize = 8;

fn load(bench: &mut Bench) -> Results {
    each(bench, |options, _, agent| {
        let pid = agent.pid()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let mut clients: Vec<JoinHandle<Result<u64, String>>> = Vec::new();
        for _ in 0..CLIENTS.saturating_sub(2) {
            clients.push(asking(agent.link()?.clone(), Arc::clone(&is_over)));
        }
        let mut downloads = Vec::new();
        for _ in 0..2 {
            downloads.push(downloading(agent.link()?.clone(), Arc::clone(&is_over)));
        }
        let start = os::now();
        let mut pss = Vec::new();
        while os::since(start) < options.load {
            os::pause(Duration::from_millis(100));
            pss.push(process::pss_mb(pid)?);
        }
        is_over.store(true, Ordering::Relaxed);
        let seconds = os::since(start).as_secs_f64();
        let answered = joined(clients)?;
        let downloaded = joined(downloads)?;
        let pss = Samples::of(pss);
        let note = format!("median {}, {} looks", number(pss.median()), pss.len());
        let beside = format!(
            "beside {} MB/s of bulk",
            number(os::float(downloaded) / 1e6 / seconds)
        );
        Ok(vec![
            Measured::new(pss.largest(), note),
            Measured::new(os::float(answered) / seconds, beside),
        ])
    })
}

fn joined(threads: Vec<JoinHandle<Result<u64, String>>>) -> Result<u64, String> {
    let mut sum = 0;
    for thread in threads {
        sum += thread
            .join()
            .map_err(|_panic| "a client panicked".to_owned())??;
    }
    Ok(sum)
}

/// Asks for something small again and again; gives the number of answers.
fn asking(address: Address, is_over: Arc<AtomicBool>) -> JoinHandle<Result<u64, String>> {
    os::thread(move || {
        let mut connection = Connection::open(&address, DEADLINE)?;
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            let (status, _) = connection.get("/api/v1/namespaces/default")?;
            if status != 200 {
                return Err(format!("a small GET was answered {status}"));
            }
            count += 1;
        }
        Ok(count)
    })
}

/// Downloads without an end; gives the bytes.
fn downloading(address: Address, is_over: Arc<AtomicBool>) -> JoinHandle<Result<u64, String>> {
    os::thread(move || {
        let mut connection = Connection::open(&address, DEADLINE)?;
        let path = format!("{}/bytes?n=100000000000", Cluster::service_path());
        let head = connection.begin(&path)?;
        if head.status != 200 {
            return Err(format!("the download was answered {}", head.status));
        }
        connection.body(head, |_| Go::until(&is_over))
    })
}

fn buffered(bench: &mut Bench) -> Results {
    each(bench, |_, _, agent| {
        agent.plane.mode(Mode::Buffered)?;
        let mut measured = Vec::new();
        for bytes in [7_000_000, 48_000_000] {
            let (answers, peak) = peak_during(agent, |agent| eight(agent, bytes))?;
            measured.push(Measured::new(peak, answers));
        }
        agent.plane.mode(Mode::Streaming)?;
        Ok(measured)
    })
}

/// Eight at once; says what became of them.
fn eight(agent: &Agent, bytes: u64) -> Result<String, String> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let address = agent.link()?.clone();
        clients.push(os::thread(move || {
            let path = format!("{}/bytes?n={bytes}", Cluster::service_path());
            Connection::open(&address, DEADLINE)?.get(&path)
        }));
    }
    let mut whole = 0;
    let mut others = Vec::new();
    for client in clients {
        match client
            .join()
            .map_err(|_panic| "a client panicked".to_owned())?
        {
            Ok((200, read)) if read == bytes => whole += 1,
            Ok((status, _)) => others.push(status.to_string()),
            Err(error) => others.push(error),
        }
    }
    others.sort_unstable();
    others.dedup();
    let mut text = format!("{whole} of {CLIENTS} answered");
    if !others.is_empty() {
        text = format!("{text}, the others: {}", others.join(", "));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_is_compared_by_its_middle() {
        let of = |values: &[f64]| Samples::of(values.to_vec());
        let compared = compared(
            &of(&[900.0, 1000.0, 100.0]),
            &of(&[450.0, 10.0, 460.0]),
            &of(&[2.0]),
        );
        assert!((compared[0].value.unwrap() - 50.0).abs() < 1e-9);
        assert!((compared[1].value.unwrap() - 450.0).abs() < 1e-9);
        let relays = beside_relays(&of(&[900.0]), &of(&[450.0]), &Ok(of(&[300.0])));
        assert!((relays.value.unwrap() - 150.0).abs() < 1e-9);
        assert!(
            compared[1].note.contains("10.0 to 460"),
            "{}",
            compared[1].note
        );
    }
}
