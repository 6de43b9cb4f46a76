//! Consumer of memory: the Pod or program that has most of it, by what `/proc` says of all
//! processes.

use std::collections::BTreeMap;

use crate::core::format::size;

#[derive(Clone, Debug, Default)]
pub struct Process {
    pub name: String,
    /// Its cgroups, as `/proc` has them.
    pub cgroup: String,
    /// Memory of it that is resident.
    pub bytes: u64,
}

/// Bytes in the line `VmRSS` of a process.
pub fn resident(status: &str) -> u64 {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = number.and_then(|number| number.parse().ok()).unwrap_or(0);
    kib.saturating_mul(1024)
}

/// The largest consumer, in words. `logs` are the directories of Pods in `/var/log/pods`:
/// `NAMESPACE_NAME_UID`.
pub fn largest(processes: &[Process], logs: &[String]) -> Option<String> {
    let mut sums: BTreeMap<(bool, String), u64> = BTreeMap::new();
    for process in processes {
        let pod = pod(&process.cgroup);
        let key = (pod.is_some(), pod.unwrap_or_else(|| process.name.clone()));
        let sum = sums.entry(key).or_default();
        *sum = sum.saturating_add(process.bytes);
    }
    let ((is_pod, name), bytes) = sums.into_iter().max_by_key(|(_, bytes)| *bytes)?;
    let has = format!("{} of it", size(bytes));
    if !is_pod {
        return Some(format!("{name} has {has}"));
    }
    let named = logs.iter().find_map(|path| {
        let log = path.rsplit('/').next()?.strip_suffix(&name)?;
        log.strip_suffix('_')?.split_once('_')
    });
    Some(match named {
        Some((namespace, pod)) => format!("the Pod {namespace}/{pod} has {has}"),
        None => format!("the Pod with the UID {name} has {has}"),
    })
}

/// UID of the Pod that cgroups belong to: `…/pod1234-…/…`, or `…-pod1234_….slice` of systemd.
fn pod(cgroup: &str) -> Option<String> {
    cgroup.split(['/', '\n']).find_map(|part| {
        let (_, uid) = part.rsplit_once("pod")?;
        let uid = uid.strip_suffix(".slice").unwrap_or(uid).replace('_', "-");
        let is_digit = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        (uid.len() >= 32 && uid.bytes().all(is_digit)).then_some(uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8c1d2b66-2f4e-4a43-9a6f-0123456789ab";

    fn process(name: &str, cgroup: &str, mb: u64) -> Process {
        Process {
            name: name.to_owned(),
            cgroup: cgroup.to_owned(),
            bytes: mb * 1_000_000,
        }
    }

    #[test]
    fn the_processes_of_a_pod_count_together_whoever_makes_its_cgroup() {
        let of_systemd = format!(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/x.scope\n",
            UID.replace('-', "_")
        );
        let logs = [format!("/var/log/pods/shop_web-1_{UID}")];
        for cgroup in [
            &*of_systemd,
            &format!("0::/kubepods/besteffort/pod{UID}/abc\n"),
        ] {
            let found = largest(
                &[
                    process("k3s-server", "0::/system.slice/k3s.service\n", 500),
                    process("node", cgroup, 300),
                    process("node", cgroup, 301),
                ],
                &logs,
            );
            assert_eq!(
                found.as_deref(),
                Some("the Pod shop/web-1 has 601.0 MB of it")
            );
        }
        let found = largest(&[process("node", &of_systemd, 1)], &[]).unwrap();
        assert!(found.contains(UID), "{found}");
    }

    #[test]
    fn a_program_beside_the_pods_is_named_by_its_name() {
        let found = largest(&[process("minecraft", "0::/user.slice\n", 900)], &[]);
        assert_eq!(found.as_deref(), Some("minecraft has 900.0 MB of it"));
        assert_eq!(largest(&[], &[]), None);
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1000 kB\n"), 1_024_000);
        assert_eq!(resident("Name:\tkthreadd\n"), 0);
    }
}
