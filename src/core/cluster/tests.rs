use super::*;

fn at(second: u64) -> Mono {
    Mono::since_boot(Duration::from_secs(second))
}

fn pod(name: &str, cpu_nano: u64, read_at: i64, received: u64) -> Pod {
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        usage: Usage {
            cpu_nano: Some(cpu_nano),
            working_set: Some(1000),
            network: Some(Network {
                at: Wall::from_millis(read_at * 1000),
                bytes: [received, 0],
            }),
            ..Usage::default()
        },
    }
}

fn round(cluster: &Cluster, pods: Vec<Pod>) -> Round {
    let mut round = Round::default();
    let node = Usage::default();
    cluster.add(&mut round, "pi", Summary { node, pods });
    round
}

/// Value of a series among the points.
fn value(points: &[Point], key: &str) -> Option<i64> {
    let found = points
        .iter()
        .find(|point| point.series.key.to_string() == key)?;
    Some(found.value)
}

const RECEIVED: &str =
    "cluster_pod_network_bytes_per_second{direction=\"receive\",namespace=\"shop\",pod=\"web\"}";

#[test]
fn a_network_has_a_rate_by_the_kubelets_time_and_never_a_spike() {
    let mut cluster = Cluster::default();
    let mut next = |second, read_at, received| {
        let round = round(&cluster, vec![pod("web", 1, read_at, received)]);
        let (points, _) = cluster.points(round, &LiteMap::new(), &[], at(second));
        value(&points, RECEIVED)
    };
    // The first reading, and one 50 s later by the kubelet although 60 s have passed.
    assert_eq!(next(60, 1000, 10), None);
    assert_eq!(next(120, 1050, 5010), Some(100));
    // The same reading again; a Pod that began anew; a kubelet whose clock jumped; a long sleep.
    assert_eq!(next(180, 1050, 5010), None);
    assert_eq!(next(240, 1110, 7), None);
    assert_eq!(next(300, 9_999_999, 1_000_007), None);
    assert_eq!(next(360, 1230, 2_000_000), None);
    assert_eq!(next(3600, 4470, 3_000_000), None);
    assert_eq!(next(3660, 4530, 3_000_600), Some(10));
}

#[test]
fn the_largest_pods_have_series_and_the_rest_is_one_sum() {
    let mut cluster = Cluster::default();
    let pods = |count: u64| {
        let each = (0..count).map(|index| pod(&format!("p{index}"), 1_000_000 + index, 1, 0));
        each.collect::<Vec<_>>()
    };
    let mut big = Round::default();
    for node in 0..50 {
        let summary = Summary {
            node: Usage::default(),
            pods: pods(200),
        };
        cluster.add(&mut big, &format!("n{node}"), summary);
        assert!(big.pods.len() <= 2 * PODS_MAX);
    }
    let (points, left) = cluster.points(big, &LiteMap::new(), &[], at(60));
    let small = 10_000 - PODS_MAX;
    assert_eq!(left, Unlisted { small, new: 0 });
    assert!(points.len() < 1000, "{}", points.len());
    let memory = value(&points, "cluster_other_pods_memory_working_set_bytes");
    assert_eq!(memory, Some(9_800_000));
    assert_eq!(cluster.networks.len(), cluster.chosen.len());
}

#[test]
fn two_pods_of_a_size_do_not_change_places_each_time() {
    let mut cluster = Cluster::default();
    let mut pods: Vec<_> = (0..PODS_MAX)
        .map(|index| pod(&index.to_string(), 1000, 1, 0))
        .collect();
    let first = round(&cluster, pods.clone());
    cluster.points(first, &LiteMap::new(), &[], at(60));
    pods.insert(0, pod("new", 1100, 1, 0));
    let second = round(&cluster, pods.clone());
    let (points, left) = cluster.points(second, &LiteMap::new(), &[], at(120));
    let key = "cluster_pod_cpu_cores{namespace=\"shop\",pod=\"new\"}";
    assert_eq!((left.small, value(&points, key)), (1, None));
    pods[0].usage.cpu_nano = Some(3_000_000);
    let third = round(&cluster, pods);
    let (points, _) = cluster.points(third, &LiteMap::new(), &[], at(180));
    assert_eq!(value(&points, key), Some(30));
}

#[test]
fn pods_that_come_and_go_take_no_more_than_twelve_places_an_hour() {
    let mut cluster = Cluster::default();
    let mut named = BTreeSet::new();
    let mut left = Unlisted::default();
    // Three new Pods every minute for a day, each gone with the next, beside one that stays.
    for minute in 1..=1_440_u64 {
        let brief =
            (0..3).map(|index| pod(&format!("job-{minute}-{index}"), 1_000_000 + index, 1, 0));
        let pods = brief.chain([pod("web", 1, 1, 0)]).collect();
        let round = round(&cluster, pods);
        let (points, now) = cluster.points(round, &LiteMap::new(), &[], at(minute * 60));
        left = now;
        assert!(
            value(
                &points,
                "cluster_pod_cpu_cores{namespace=\"shop\",pod=\"web\"}"
            )
            .is_some()
        );
        let pods = points
            .iter()
            .filter_map(|point| point.series.key.label("pod"));
        named.extend(pods.map(str::to_owned));
        // What has no series of its own is in the sum.
        let rest = value(&points, "cluster_other_pods_cpu_cores").unwrap_or(0);
        let all: i64 = points
            .iter()
            .filter(|point| point.series.key.name() == "cluster_pod_cpu_cores")
            .map(|point| point.value)
            .sum();
        assert_eq!(all + rest, 30, "minute {minute}");
    }
    assert!(named.len() <= 300 + 24 * 12 + 1, "{}", named.len());
    assert!(named.len() >= 300 + 24 * 12 - 2, "{}", named.len());
    assert_eq!((left.small, left.new > 0), (0, true));
}

#[test]
fn nodes_say_their_conditions_and_no_more_than_fifty_of_them() {
    let node = Node {
        is_ready: true,
        pressures: [false, true, false],
        cpu_milli: Some(3800),
        memory: Some(1 << 30),
        pods: None,
    };
    let nodes = (0..80)
        .map(|index| (format!("n{index:02}"), node))
        .collect();
    let mut cluster = Cluster::default();
    let (points, _) = cluster.points(Round::default(), &nodes, &[], at(60));
    for (key, wanted) in [
        ("cluster_node_ready{node=\"n00\"}", Some(1)),
        ("cluster_node_memory_pressure{node=\"n00\"}", Some(0)),
        ("cluster_node_disk_pressure{node=\"n49\"}", Some(1)),
        (
            "cluster_node_allocatable_cpu_cores{node=\"n00\"}",
            Some(3800),
        ),
        ("cluster_node_allocatable_pods{node=\"n00\"}", None),
        ("cluster_node_ready{node=\"n50\"}", None),
    ] {
        assert_eq!(value(&points, key), wanted, "{key}");
    }
}

fn counted(phases: &mut Phases) -> Vec<Point> {
    let mut points = Points::default();
    phases::points(&phases.take().unwrap(), &mut points);
    points.list
}

#[test]
fn phases_follow_each_pod_and_restarts_are_those_of_the_time_in_between() {
    let mut phases = Phases::default();
    phases.reset();
    phases.tell("1", "shop", "Running", 7);
    phases.tell("2", "shop", "Pending", 0);
    assert_eq!(phases.take(), None);
    phases.complete();
    let running = "cluster_pods{namespace=\"shop\",phase=\"Running\"}";
    let pending = "cluster_pods{namespace=\"shop\",phase=\"Pending\"}";
    let restarts = "cluster_container_restarts{namespace=\"shop\"}";
    let points = counted(&mut phases);
    assert_eq!(value(&points, running), Some(1));
    assert_eq!(value(&points, restarts), Some(0));
    phases.tell("2", "shop", "Running", 2);
    let points = counted(&mut phases);
    assert_eq!(
        (value(&points, running), value(&points, pending)),
        (Some(2), Some(0))
    );
    assert_eq!(value(&points, restarts), Some(2));
    // A gap, in which one Pod went and the other failed once more.
    phases.reset();
    phases.tell("2", "shop", "Running", 3);
    phases.complete();
    let points = counted(&mut phases);
    assert_eq!(
        (value(&points, running), value(&points, restarts)),
        (Some(1), Some(1))
    );
    phases.forget("2");
    phases.forget("2");
    assert_eq!(counted(&mut phases), []);
}

#[test]
fn a_thousand_namespaces_are_fifty_and_the_others() {
    let mut phases = Phases::default();
    for index in 0..1000 {
        phases.tell(&index.to_string(), &format!("n{index}"), "Running", 0);
    }
    phases.complete();
    let points = counted(&mut phases);
    assert_eq!(points.len(), 51 * 4);
    let others = "cluster_pods{namespace=\"(others)\",phase=\"Running\"}";
    assert_eq!(value(&points, others), Some(950));
}
