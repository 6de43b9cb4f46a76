//! Summary API of a kubelet: `/stats/summary`. A handful of fields; containers and volumes are
//! skipped.

use crate::{
    core::{
        cluster::{self, Network, Usage},
        time::Wall,
    },
    wire::json::{self, List, Place, Shape, fields},
};

/// Pods of one node that are read: four times what Kubernetes recommends. Where a kubelet says
/// more, the others are left out.
const PODS_MAX: usize = 500;

/// The answer.
#[derive(Default)]
struct Summary {
    node: Stats,
    pods: FirstPods,
}
fields!(Summary { node, pods });

/// Of a node, or of a Pod.
#[derive(Default)]
struct Stats {
    pod_ref: Reference,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    network: Option<Interface>,
    fs: Option<Space>,
    ephemeral_storage: Option<Space>,
}
fields!(Stats {
    pod_ref: "podRef",
    cpu,
    memory,
    network,
    fs,
    ephemeral_storage: "ephemeral-storage",
});

#[derive(Default)]
struct Reference {
    name: String,
    namespace: String,
}
fields!(Reference { name, namespace });

#[derive(Default)]
struct Cpu {
    usage_nano_cores: Option<u64>,
}
fields!(Cpu {
    usage_nano_cores: "usageNanoCores",
});

#[derive(Default)]
struct Memory {
    working_set_bytes: Option<u64>,
}
fields!(Memory {
    working_set_bytes: "workingSetBytes",
});

#[derive(Default)]
struct Interface {
    time: String,
    rx_bytes: Option<u64>,
    tx_bytes: Option<u64>,
}
fields!(Interface {
    time,
    rx_bytes: "rxBytes",
    tx_bytes: "txBytes",
});

/// Bytes of a file system.
#[derive(Default)]
struct Space {
    capacity: Option<u64>,
    available: Option<u64>,
    used: Option<u64>,
}
fields!(Space {
    capacity: "capacityBytes",
    available: "availableBytes",
    used: "usedBytes",
});

/// The first of a list: what is beyond them is read over, so that a kubelet that lies takes no
/// memory.
#[derive(Default)]
struct FirstPods(Vec<Stats>);

impl Shape for FirstPods {
    fn place(&mut self) -> Place<'_> {
        Place::List(self)
    }
}

impl List for FirstPods {
    fn clear(&mut self) {
        self.0.clear();
    }

    fn add(&mut self) -> Place<'_> {
        match self.0.len() {
            0..PODS_MAX => self.0.add(),
            _ => Place::Nowhere,
        }
    }
}

/// Reads an answer.
///
/// # Errors
/// Errors of the JSON.
pub fn read(answer: &[u8]) -> Result<cluster::Summary, serde_json::Error> {
    let summary: Summary = json::shape(answer)?;
    let pods = summary.pods.0.into_iter();
    let named = pods.filter(|pod| !pod.pod_ref.name.is_empty());
    let pods = named.map(|pod| cluster::Pod {
        usage: pod.usage(),
        namespace: pod.pod_ref.namespace,
        name: pod.pod_ref.name,
    });
    Ok(cluster::Summary {
        pods: pods.collect(),
        node: summary.node.usage(),
    })
}

impl Stats {
    fn usage(&self) -> Usage {
        let network = self.network.as_ref().and_then(|network| {
            Some(Network {
                at: Wall::parse_rfc3339(&network.time)?,
                bytes: [network.rx_bytes?, network.tx_bytes?],
            })
        });
        let space = self.fs.as_ref();
        let disk = self.ephemeral_storage.as_ref();
        Usage {
            cpu_nano: self.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores),
            working_set: self
                .memory
                .as_ref()
                .and_then(|memory| memory.working_set_bytes),
            network,
            file_system: space.and_then(|space| Some((space.capacity?, space.available?))),
            disk: disk.and_then(|space| space.used),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As a kubelet 1.34 writes it, shortened.
    const ANSWER: &str = r#"{
      "node": {"nodeName":"pi","systemContainers":[{"name":"kubelet","cpu":{"usageNanoCores":1}}],"startTime":"2026-06-16T05:00:00Z",
        "cpu":{"time":"2026-06-16T05:50:28Z","usageNanoCores":250000000,"usageCoreNanoSeconds":9007199254740993},
        "memory":{"time":"2026-06-16T05:50:28Z","availableBytes":1,"usageBytes":2,"workingSetBytes":700000000,"rssBytes":3,"pageFaults":4},
        "network":{"time":"2026-06-16T05:50:28Z","name":"eth0","rxBytes":1000,"rxErrors":0,"txBytes":2000,"txErrors":0,"interfaces":[{"name":"eth0","rxBytes":1}]},
        "fs":{"time":"2026-06-16T05:50:28Z","availableBytes":60,"capacityBytes":100,"usedBytes":40,"inodesFree":1},
        "runtime":{"imageFs":{"usedBytes":9}},"rlimit":{"maxpid":1,"curproc":2}},
      "pods": [
        {"podRef":{"name":"web-0","namespace":"shop","uid":"u"},"startTime":"x","containers":[{"name":"app","rootfs":{"usedBytes":5},"cpu":{"usageNanoCores":77}}],
         "cpu":{"usageNanoCores":12000000},"memory":{"workingSetBytes":5000000},
         "network":{"time":"2026-06-16T05:50:20Z","rxBytes":10,"txBytes":20},
         "volume":[{"usedBytes":1,"name":"data"}],"ephemeral-storage":{"usedBytes":8192},"process_stats":{"process_count":1}},
        {"podRef":{"name":"host-net","namespace":"kube-system"},"cpu":null,"network":{"time":"","name":""}},
        {"podRef":{}}
      ]}"#;

    #[test]
    fn the_fields_that_are_kept_are_read_and_everything_else_is_skipped() {
        let summary = read(ANSWER.as_bytes()).unwrap();
        assert_eq!(summary.node.cpu_nano, Some(250_000_000));
        assert_eq!(summary.node.file_system, Some((100, 60)));
        let network = summary.node.network.unwrap();
        assert_eq!(
            (network.at.millis(), network.bytes),
            (1_781_589_028_000, [1000, 2000])
        );
        let [web, host] = summary.pods.as_slice() else {
            panic!("{:?}", summary.pods);
        };
        assert_eq!(
            (web.namespace.as_str(), web.name.as_str()),
            ("shop", "web-0")
        );
        assert_eq!(web.usage.working_set, Some(5_000_000));
        assert_eq!(web.usage.disk, Some(8192));
        assert_eq!(host.usage, Usage::default());
    }

    #[test]
    fn a_kubelet_that_says_too_much_is_read_in_part() {
        let pods = vec![r#"{"podRef":{"name":"a"}}"#; 100_000].join(",");
        let summary = read(format!(r#"{{"node":{{}},"pods":[{pods}]}}"#).as_bytes()).unwrap();
        assert_eq!(summary.pods.len(), PODS_MAX);
        assert_eq!(
            read(br#"{"pods":null}"#).unwrap(),
            cluster::Summary::default()
        );
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_no_panic(cut in 0..ANSWER.len(), at in 0..ANSWER.len(), byte: u8) {
            let mut bytes = ANSWER.as_bytes().to_vec();
            bytes[at] = byte;
            let _whole = read(&bytes);
            prop_assert!(read(&ANSWER.as_bytes()[..cut]).is_err());
        }
    }
}
