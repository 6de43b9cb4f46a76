use super::{
    scheduling::{quantity, requested},
    *,
};
use serde_json::json;

#[test]
fn quantities_are_read_in_all_their_forms() {
    for (amount, resource, wanted) in [
        (json!("250m"), "cpu", 250),
        (json!("1.5"), "cpu", 1500),
        (json!(2), "cpu", 2000),
        (json!("1Gi"), "memory", 1 << 30),
        (json!("1.5Gi"), "memory", 1_610_612_736),
        (json!("1e9"), "memory", 1_000_000_000),
        (json!("1Pi"), "memory", 1 << 50),
        (json!("128000m"), "memory", 128),
        (json!("100000u"), "cpu", 100),
        (json!("500M"), "memory", 500_000_000),
        (json!("128"), "memory", 128),
    ] {
        assert_eq!(quantity(&amount, resource), Some(wanted), "{amount}");
    }
}

fn pod(spec: &Value, status: &Value) -> Object {
    let metadata = json!({"name": "p", "namespace": "shop", "uid": "p"});
    Object::reduced(
        "Pod",
        &json!({"metadata": metadata, "spec": spec, "status": status}),
    )
}

#[test]
fn what_init_containers_request_counts_as_the_scheduler_counts_it() {
    let container = |memory: &str| json!({"resources": {"requests": {"memory": memory}}});
    let mut sidecar = container("4Mi");
    sidecar["restartPolicy"] = json!("Always");
    let main = || json!([container("2Mi"), container("1Mi")]);
    for (inits, wanted) in [
        (json!([]), 3),
        (json!([container("2Mi")]), 3),
        (json!([container("64Mi")]), 64),
        (json!([sidecar]), 7),
        (json!([sidecar, container("64Mi")]), 68),
        (json!([container("64Mi"), sidecar]), 64),
    ] {
        let spec = json!({"containers": main(), "initContainers": inits});
        let pod = pod(&spec, &json!({}));
        assert_eq!(requested(&pod, "memory") >> 20, wanted, "{spec}");
    }
    let spec = json!({"containers": main(), "resources": {"requests": {"memory": "5Mi"}}});
    assert_eq!(requested(&pod(&spec, &json!({})), "memory") >> 20, 5);
}

#[test]
fn a_sidecar_goes_on_and_is_judged_like_a_container() {
    let spec = |policy: &str| {
        json!({"restartPolicy": policy, "initContainers": [{"name": "proxy", "restartPolicy": "Always",
            "resources": {"limits": {"memory": "8Mi"}}}], "containers": [{"name": "web"}]})
    };
    let status = |state: &Value, last: &Value| {
        json!({"initContainerStatuses": [{"name": "proxy", "restartCount": 4, "ready": false,
            "state": state, "lastState": last}]})
    };
    let found = |policy: &str, state: &Value, last: &Value| {
        let pod = pod(&spec(policy), &status(state, last));
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": "Unhealthy",
            "message": "Readiness probe failed: refused", "involvedObject": {"kind": "Pod", "namespace": "shop",
            "name": "p", "uid": "p", "fieldPath": "spec.initContainers{proxy}"}}),
        ));
        let found = findings(&pod, &seen, &Earlier::default())
            .into_iter()
            .next();
        found.map(|found| (found.cause, found.sentence, found.is_definite))
    };
    let ended =
        |code: u64, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
    let (waits, runs) = (
        json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        json!({"running": {}}),
    );
    assert_eq!(
        found("Always", &waits, &ended(0, "Completed")),
        Some((
            Cause::CrashLoop,
            "sidecar proxy keeps exiting, last with exit code 0 (which means success: a service must not end by itself)".to_owned(),
            true
        ))
    );
    assert_eq!(
        found("Always", &runs, &json!({})),
        Some((
            Cause::ProbeReadiness,
            "sidecar proxy runs, but its readiness probe fails".to_owned(),
            false
        ))
    );
    assert_eq!(
        found("Always", &waits, &ended(137, "OOMKilled")).map(|found| found.1),
        Some("container proxy used more memory than its limit of 8Mi and was killed".to_owned())
    );
    // The kubelet ends it once the Job is done.
    assert_eq!(found("Never", &ended(143, "Error"), &json!({})), None);
}

#[test]
fn a_hook_and_a_port_that_is_not_there_are_named() {
    let of = |status: &Value, event: (&str, &str)| {
        let status = json!({"containerStatuses": [status]});
        let pod = pod(
            &json!({"restartPolicy": "Always", "containers": [{"name": "web"}]}),
            &status,
        );
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": event.0, "message": event.1,
            "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": "p",
            "fieldPath": "spec.containers{web}"}}),
        ));
        let found = findings(&pod, &seen, &Earlier::default()).remove(0);
        (found.cause, found.sentence, found.is_definite)
    };
    let ended = json!({"name": "web", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}}});
    assert_eq!(
        of(&ended, ("Killing", "FailedPostStartHook")),
        (
            Cause::CrashLoop,
            "container web keeps being ended because its postStart hook fails".to_owned(),
            true
        )
    );
    let runs = json!({"name": "web", "ready": false, "state": {"running": {}}});
    let message = "Readiness probe errored and resulted in unknown state: strconv.Atoi: parsing \"htpp\": invalid syntax";
    assert_eq!(
        of(&runs, ("Unhealthy", message)),
        (
            Cause::ProbeReadiness,
            "container web runs, but its readiness probe names the port \"htpp\", which the container does not have".to_owned(),
            true
        )
    );
}

#[test]
fn a_node_that_lacks_memory_is_not_the_fault_of_the_pod() {
    let found = |message: &str| {
        let status = json!({"phase": "Failed", "reason": "Evicted", "message": message});
        findings(
            &pod(&json!({}), &status),
            &Observation::default(),
            &Earlier::default(),
        )[0]
        .cause
    };
    for (message, wanted) in [
        (
            "The node was low on resource: memory. Container web was using 1Gi, which exceeds its request of 0.",
            Cause::NodePressure,
        ),
        (
            "Usage of EmptyDir volume \"tmp\" exceeds the limit \"1Mi\".",
            Cause::EvictedOwn,
        ),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi.",
            Cause::EvictedOwn,
        ),
    ] {
        assert_eq!(found(message), wanted, "{message}");
    }
}

#[test]
fn a_pod_that_may_fit_on_a_node_in_trouble_waits_for_it() {
    let found = |message: &str, requests: &str, taint: &str| {
        let conditions = json!([{"type": "PodScheduled", "status": "False", "message": message}]);
        let pod = pod(
            &json!({"containers": [{"name": "web", "resources": {"requests": {"memory": requests}}}]}),
            &json!({"conditions": conditions}),
        );
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            "Node",
            &json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": taint}]},
                "status": {"allocatable": {"memory": "1Gi"}}}),
        ));
        let found = findings(&pod, &seen, &Earlier::default()).remove(0);
        (found.cause, found.is_definite)
    };
    let lost = "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }";
    let little = format!("0/2 nodes are available: 1 Insufficient memory, {lost}.");
    assert_eq!(found(&little, "64Mi", "").0, Cause::NodeNotReady);
    assert_eq!(found(&little, "2Gi", ""), (Cause::ScheduleMemory, true));
    let little = "0/1 nodes are available: 1 Insufficient memory.";
    assert_eq!(found(little, "64Mi", ""), (Cause::ScheduleMemory, false));
    let unnamed = "0/1 nodes are available: 1 node(s) had untolerated taint(s).";
    assert_eq!(found(unnamed, "0", "gpu"), (Cause::ScheduleTaint, true));
    let full = "node.kubernetes.io/disk-pressure";
    assert_eq!(found(unnamed, "0", full).0, Cause::NodePressure);
    for message in [
        "1 Too many pods",
        "pod has unbound immediate PersistentVolumeClaims",
    ] {
        assert!(!found(message, "0", "").1, "{message}");
    }
}

#[test]
fn a_volume_that_is_away_is_waited_for_and_one_that_is_named_wrongly_is_not() {
    let event = |kind: &str, reason: &str, message: &str| {
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": reason, "message": message,
            "involvedObject": {"kind": kind, "namespace": "shop", "name": "p", "uid": "p"}}),
        ));
        seen
    };
    let mounted = |reason: &str, message: &str, state: &str| {
        let mut status = json!({"name": "web", "state": {}});
        status["state"][state] = json!({});
        let pod = pod(&json!({}), &json!({"containerStatuses": [status]}));
        let found = findings(&pod, &event("Pod", reason, message), &Earlier::default());
        found.first().map(|found| found.cause)
    };
    let mount = "MountVolume.SetUp failed for volume \"secret-data\" : ";
    for (message, wanted) in [
        (
            "driver name a.example not found in the list of registered CSI drivers",
            Cause::StorageUnavailable,
        ),
        (
            "mount failed: input/output error",
            Cause::StorageUnavailable,
        ),
        (
            "failed to sync configmap cache: timed out waiting for the condition",
            Cause::NodeRuntime,
        ),
        ("configmap \"settings\" not found", Cause::ConfigMissing),
        (
            "configmap \"kube-root-ca.crt\" not found",
            Cause::StorageUnavailable,
        ),
        (
            "references non-existent secret key: ca.crt",
            Cause::ConfigMissing,
        ),
    ] {
        let found = mounted("FailedMount", &format!("{mount}{message}"), "waiting");
        assert_eq!(found, Some(wanted), "{message}");
    }
    let attach = "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) p";
    let found = |state| mounted("FailedAttachVolume", attach, state);
    assert_eq!(found("waiting"), Some(Cause::StorageUnavailable));
    assert_eq!(found("running"), None);
    let claim = Object::reduced(
        "PersistentVolumeClaim",
        &json!({"metadata": {"name": "p", "namespace": "shop", "uid": "p"}, "status": {"phase": "Pending"}}),
    );
    for (message, wanted) in [
        (
            "failed to provision volume with StorageClass \"local-path\": no space left on device",
            Cause::StorageUnavailable,
        ),
        (
            "failed to provision volume with StorageClass \"local-path\": Only support ReadWriteOnce access mode",
            Cause::StorageUnbound,
        ),
        (
            "storageclass.storage.k8s.io \"fast\" not found",
            Cause::StorageNoClass,
        ),
    ] {
        let seen = event("PersistentVolumeClaim", "ProvisioningFailed", message);
        assert_eq!(claim_findings(&claim, &seen)[0].cause, wanted, "{message}");
    }
}

#[test]
fn a_node_that_lacks_the_program_for_a_volume_is_told_which_one_it_is() {
    let message = "MountVolume.SetUp failed for volume \"media\" : mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs nas.lan:/media /var/lib/kubelet/pods/x/volumes/kubernetes.io~nfs/media\nOutput: mount: /var/lib/kubelet/pods/x/volumes/kubernetes.io~nfs/media: bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.";
    let status =
        json!({"containerStatuses": [{"name": "web", "state": {"waiting": {"reason": "x"}}}]});
    let pod = pod(&json!({}), &status);
    let seen = events(&[("FailedMount", message, 5)]);
    let found = findings(&pod, &seen, &Earlier::default()).remove(0);
    assert_eq!(found.cause, Cause::StorageUnavailable);
    assert!(found.fix.contains("nfs-common"), "{}", found.fix);
}

#[test]
fn a_node_that_has_not_read_what_every_pod_mounts_is_not_told_as_a_lost_volume() {
    let status =
        json!({"containerStatuses": [{"name": "web", "state": {"waiting": {"reason": "x"}}}]});
    let pod = pod(&json!({}), &status);
    for (message, wanted) in [
        (
            "MountVolume.SetUp failed for volume \"kube-api-access-x2k9p\" : object \"shop\"/\"kube-root-ca.crt\" not registered",
            Cause::NodeRuntime,
        ),
        // It is named beside a volume that is lost, too.
        (
            "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data kube-api-access-x2k9p]: timed out waiting for the condition",
            Cause::StorageUnavailable,
        ),
    ] {
        let seen = events(&[("FailedMount", message, 5)]);
        let found = findings(&pod, &seen, &Earlier::default()).remove(0);
        assert_eq!(found.cause, wanted, "{message}");
    }
}

/// The Pod of [`pod`] that cannot attach a volume which another Pod of this set uses on a node that
/// is ready or not.
fn unattached(set: &str, (is_ready, is_leaving): (&str, bool)) -> Vec<Finding> {
    let message =
        "Multi-Attach error for volume \"pvc-1\" Volume is already used by pod(s) web-0-a";
    let mut seen = events(&[("FailedAttachVolume", message, 5)]);
    let mut add = |kind: &str, whole: Value| seen.add(Object::reduced(kind, &whole));
    for (name, owner) in [("web-0", "d"), ("web-1", "d"), ("other-0", "e")] {
        let metadata = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"uid": owner}]});
        add(
            "ReplicaSet",
            json!({"metadata": metadata, "status": {"replicas": 1, "availableReplicas": 1}}),
        );
    }
    let conditions = json!([{"type": "Ready", "status": is_ready}]);
    add(
        "Node",
        json!({"metadata": {"name": "n1"}, "status": {"conditions": conditions}}),
    );
    let metadata = |name: &str, set: &str| json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"uid": set}]});
    let mut other = json!({"metadata": metadata("web-0-a", set), "spec": {"nodeName": "n1"}});
    if is_leaving {
        other["metadata"]["deletionTimestamp"] = json!("2026-01-01T10:00:00Z");
    }
    add("Pod", other);
    let waiting = json!([{"name": "web", "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    let whole = json!({"metadata": metadata("p", "web-1"), "spec": {"nodeName": "n2"},
        "status": {"containerStatuses": waiting}});
    let pod = Object::reduced("Pod", &whole);
    seen.add(pod.clone());
    findings(&pod, &seen, &Earlier::default())
}

#[test]
fn a_volume_that_another_pod_of_the_deployment_keeps_never_becomes_free() {
    let found = |set, other| {
        let found = unattached(set, other).remove(0);
        (found.cause, found.is_definite)
    };
    for set in ["web-0", "web-1"] {
        let kept = (Cause::StorageUnbound, true);
        assert_eq!(found(set, ("True", false)), kept, "{set}");
    }
    let away = (Cause::StorageUnavailable, false);
    assert_eq!(found("other-0", ("True", false)), away);
    assert_eq!(found("web-0", ("True", true)), away);
    assert_eq!(found("web-0", ("Unknown", false)), away);
}

#[test]
fn a_sandbox_that_is_not_made_is_blamed_on_what_its_node_names() {
    let begun = "Failed to create pod sandbox: rpc error: code = Unknown desc = ";
    for (message, cause, word) in [
        (
            "failed to setup network for sandbox \"ab\": plugin type=\"flannel\" failed (add): open /run/flannel/subnet.env: no such file or directory",
            Cause::NodeSandbox,
            "set up the network",
        ),
        (
            "failed to start sandbox \"ab\": failed to get sandbox image \"rancher/mirrored-pause:3.6\": failed to pull image \"rancher/mirrored-pause:3.6\": dial tcp: lookup registry-1.docker.io: Try again",
            Cause::NodeSandbox,
            "the image that every Pod needs first",
        ),
        (
            "failed to get sandbox runtime: no runtime for \"nvidia\" is configured",
            Cause::ConfigMissing,
            "RuntimeClass",
        ),
        (
            "failed to reserve sandbox name \"web_shop_u_0\": name \"web_shop_u_0\" is reserved for \"ab\"",
            Cause::NodeSandbox,
            "cannot make the sandbox",
        ),
    ] {
        let seen = events(&[("FailedCreatePodSandBox", &format!("{begun}{message}"), 5)]);
        let found = findings(&pod(&json!({}), &json!({})), &seen, &Earlier::default()).remove(0);
        assert_eq!(
            (found.cause, found.is_definite),
            (cause, false),
            "{message}"
        );
        assert!(found.sentence.contains(word), "{}", found.sentence);
    }
}

#[test]
fn a_pod_that_its_node_rejects_says_why_unless_another_one_starts_in_its_place() {
    let message = "Pod was rejected: Allocate failed due to can't allocate unhealthy devices squat.ai/video, which is unexpected";
    let rejected =
        json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message});
    let found = |beside: Option<&Value>| {
        let mut seen = Observation::default();
        let mut of_set = |name: &str, status: &Value| {
            let metadata = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"uid": "r"}]});
            let whole = json!({"metadata": metadata, "status": status});
            let pod = Object::reduced("Pod", &whole);
            seen.add(pod.clone());
            pod
        };
        let pod = of_set("p", &rejected);
        if let Some(beside) = beside {
            of_set("q", beside);
        }
        let found = super::rejected(&pod, &seen);
        found.map(|found| (found.cause, found.evidence, found.is_definite))
    };
    let evidence = format!("UnexpectedAdmissionError: {message}");
    let told = Some((Cause::Schedule, evidence, false));
    assert_eq!(found(None), told);
    assert_eq!(found(Some(&rejected)), told);
    assert_eq!(found(Some(&json!({"phase": "Pending"}))), None);
}

#[test]
fn a_pod_that_its_node_never_takes_is_named_while_the_next_one_waits() {
    let of_set = |name: &str, status: &Value| {
        let metadata = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [{"uid": "r"}]});
        Object::reduced("Pod", &json!({"metadata": metadata, "status": status}))
    };
    let found = |count: u64, (reason, message): (&str, &str), next: &Value| {
        let status = json!({"phase": "Failed", "reason": reason, "message": message});
        let mut seen = Observation::default();
        for number in 0..count {
            seen.add(of_set(&format!("p{number}"), &status));
        }
        seen.add(of_set("q", next));
        let found = rejected(&of_set("p0", &status), &seen);
        found.map(|found| (found.cause, found.is_definite))
    };
    let sysctl = (
        "SysctlForbidden",
        "Pod was rejected: forbidden sysctl: \"net.core.somaxconn\" not allowlisted",
    );
    let device = ("UnexpectedAdmissionError", "m");
    let (waits, taken) = (
        json!({"phase": "Pending"}),
        json!({"phase": "Pending", "containerStatuses": [{"name": "web"}]}),
    );
    assert_eq!(found(2, sysctl, &waits), None);
    assert_eq!(found(3, sysctl, &waits), Some((Cause::Schedule, true)));
    assert_eq!(found(3, device, &waits), Some((Cause::Schedule, false)));
    assert_eq!(found(3, device, &taken), None);
}

#[test]
fn a_pod_whose_readiness_gate_is_closed_says_so() {
    let message =
        "corresponding condition of pod readiness gate \"x.example/ready\" does not exist.";
    let conditions = json!([{"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": message}]);
    let runs = json!([{"name": "web", "ready": true, "state": {"running": {}}}]);
    let status = json!({"phase": "Running", "conditions": conditions, "containerStatuses": runs});
    let pod = pod(&json!({}), &status);
    let found = findings(&pod, &Observation::default(), &Earlier::default()).remove(0);
    assert!(!found.is_definite && found.evidence.contains(message));
    assert_eq!(
        found.sentence,
        "Pod shop/p is not ready: its readiness gate is closed"
    );
}

#[test]
fn an_image_that_the_pod_may_not_use_is_on_the_node() {
    let message = "Container image \"a:1\" is present with pull policy of Never but does not have the proper credentials to be used";
    let waiting = json!({"waiting": {"reason": "ErrImageNeverPull", "message": message}});
    let status = json!({"containerStatuses": [{"name": "web", "image": "a:1", "state": waiting}]});
    let pod = pod(&json!({}), &status);
    let found = findings(&pod, &Observation::default(), &Earlier::default()).remove(0);
    assert_eq!(found.cause, Cause::ImageUnauthorized);
}

#[test]
fn a_probe_whose_events_are_combined_stays_the_same_probe() {
    let event = json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": "Unhealthy",
        "message": "(combined from similar events): Startup probe failed: connection reset by peer",
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": "p", "fieldPath": "spec.containers{web}"}});
    let mut seen = Observation::default();
    seen.add(Object::reduced("Event", &event));
    let runs =
        json!({"containerStatuses": [{"name": "web", "ready": false, "state": {"running": {}}}]});
    let found = findings(&pod(&json!({}), &runs), &seen, &Earlier::default()).remove(0);
    assert_eq!(found.cause, Cause::ProbeStartup);
}

#[test]
fn constraints_on_how_pods_spread_have_a_fix_of_their_own() {
    let message = "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label). no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let conditions = json!([{"type": "PodScheduled", "status": "False", "message": message}]);
    let pod = pod(&json!({}), &json!({"conditions": conditions}));
    let found = findings(&pod, &Observation::default(), &Earlier::default()).remove(0);
    assert_eq!(found.cause, Cause::ScheduleAffinity);
    assert!(found.fix.contains("ScheduleAnyway"), "{}", found.fix);
}

#[test]
fn a_claim_that_wants_what_its_class_never_has_is_not_waited_for() {
    for (said, wants) in [
        ("claim.Spec.Selector is not supported", "a selector"),
        (
            "rancher.io/local-path does not support block volume provisioning",
            "a block volume",
        ),
    ] {
        let mut seen = claimed("Pending", "ProvisioningFailed");
        let mut event = seen.of_kind("Event").next().unwrap().value().clone();
        event["message"] = json!(format!(
            "failed to provision volume with StorageClass \"local-path\": {said}"
        ));
        seen.add(Object::recorded(&event));
        let claim = seen.of_kind("PersistentVolumeClaim").next().unwrap();
        let found = claim_findings(claim, &seen).remove(0);
        assert_eq!(
            (found.cause, found.is_definite),
            (Cause::StorageUnbound, true)
        );
        assert!(found.sentence.contains(wants), "{}", found.sentence);
    }
}

/// A claim in this phase, and an event about it with this reason.
fn claimed(phase: &str, reason: &str) -> Observation {
    let mut seen = Observation::default();
    let metadata = json!({"name": "data", "namespace": "shop", "uid": "c"});
    seen.add(Object::reduced(
        "PersistentVolumeClaim",
        &json!({"metadata": metadata, "status": {"phase": phase}}),
    ));
    seen.add(Object::reduced(
        "Event",
        &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": reason, "message": "m",
        "involvedObject": {"kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data", "uid": "c"}}),
    ));
    seen
}

#[test]
fn a_volume_that_its_provisioner_has_not_made_or_that_is_lost_is_not_the_fault_of_the_app() {
    let volumes = json!([{"persistentVolumeClaim": {"claimName": "data"}}]);
    let found = |(phase, reason): (&str, &str), message: &str| {
        let status = match message {
            "" => json!({}),
            message => {
                json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]})
            }
        };
        let pod = pod(&json!({"volumes": volumes}), &status);
        let found = findings(&pod, &claimed(phase, reason), &Earlier::default());
        let first = found.into_iter().next();
        first.map(|found| (found.cause, found.object, found.is_definite))
    };
    let claim = "PersistentVolumeClaim shop/data".to_owned();
    let of_claim = |is_definite| Some((Cause::StorageUnavailable, claim.clone(), is_definite));
    let of_pod = |cause| Some((cause, "Pod shop/p".to_owned(), true));
    let late =
        "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded";
    let lost = "0/11 nodes are available: persistentvolumeclaim \"data\" bound to non-existent persistentvolume \"pvc-1\". not found";
    let gone =
        "0/1 nodes are available: persistentvolumeclaim \"data\" is being deleted. not found";
    let comes = ("Pending", "ExternalProvisioning");
    for message in ["", late] {
        assert_eq!(found(comes, message), of_claim(false), "{message}");
    }
    assert_eq!(found(("Lost", "ClaimLost"), lost), of_claim(true));
    let bound = ("Bound", "ExternalProvisioning");
    for (message, wanted) in [
        (late, Cause::StorageUnavailable),
        (lost, Cause::StorageUnavailable),
        (gone, Cause::Finalizer),
    ] {
        assert_eq!(found(bound, message), of_pod(wanted), "{message}");
    }
    for nothing in [bound, ("Pending", "WaitForFirstConsumer")] {
        assert_eq!(found(nothing, ""), None, "{nothing:?}");
    }
}

/// Events about the Pod of [`pod`]: reason, message and second.
fn events(all: &[(&str, &str, u64)]) -> Observation {
    let mut seen = Observation::default();
    for (number, (reason, message, second)) in all.iter().enumerate() {
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": format!("e{number}"), "namespace": "shop"},
                "reason": reason, "message": message, "lastTimestamp": format!("2026-01-01T10:00:{second:02}Z"),
                "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": "p"}}),
        ));
    }
    seen
}

#[test]
fn a_volume_that_was_mounted_since_says_nothing_any_more() {
    let status =
        json!({"containerStatuses": [{"name": "web", "state": {"waiting": {"reason": "x"}}}]});
    let pod = pod(&json!({}), &status);
    let mount = "MountVolume.SetUp failed for volume \"a\" : configmap \"settings\" not found";
    let sandbox = ("FailedCreatePodSandBox", "no network", 5);
    let found = |all: &[(&str, &str, u64)]| {
        let found = findings(&pod, &events(all), &Earlier::default());
        found.first().map(|found| found.cause)
    };
    let failed = ("FailedMount", mount, 5);
    assert_eq!(found(&[failed]), Some(Cause::ConfigMissing));
    for later in ["Pulling", "Pulled", "Created", "Started"] {
        for second in [5, 6] {
            for failed in [failed, sandbox] {
                assert_eq!(found(&[failed, (later, "", second)]), None, "{later}");
            }
        }
        let before = (later, "", 4);
        assert_eq!(found(&[before, failed]), Some(Cause::ConfigMissing));
    }
}

#[test]
fn a_container_without_a_limit_was_killed_for_the_memory_of_its_node() {
    let found = |spec: &Value, last: &Value| {
        let status = json!({"name": "web", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": last}});
        let pod = pod(spec, &json!({"containerStatuses": [status]}));
        let found = findings(&pod, &Observation::default(), &Earlier::default()).remove(0);
        (found.cause, found.sentence)
    };
    let ended = json!({"exitCode": 137, "reason": "OOMKilled"});
    let never = json!({"exitCode": 128, "reason": "StartError",
        "message": "container init was OOM-killed (memory limit too low?): unknown"});
    let limits = json!({"limits": {"memory": "8Mi"}});
    for last in [&ended, &never] {
        let own = json!({"restartPolicy": "Always", "containers": [{"name": "web", "resources": limits}]});
        let of_pod = json!({"restartPolicy": "Always", "containers": [{"name": "web"}], "resources": limits});
        for spec in [own, of_pod] {
            assert_eq!(
                found(&spec, last),
                (
                    Cause::Oom,
                    "container web used more memory than its limit of 8Mi and was killed"
                        .to_owned()
                )
            );
        }
        let none = json!({"restartPolicy": "Always", "containers": [{"name": "web"}]});
        assert_eq!(
            found(&none, last),
            (
                Cause::NodePressure,
                "container web was killed because its node ran out of memory; it has no limit of its own".to_owned()
            )
        );
    }
}

#[test]
fn an_image_of_another_platform_says_for_which_one_it_is() {
    let message = "image with reference a:1 was found but its platform (linux/amd64) does not match the specified platform (linux/arm64/v8)";
    let status = json!({"name": "web", "image": "a:1", "state": {"waiting": {"reason": "ErrImagePull", "message": message}}});
    let pod = pod(&json!({}), &json!({"containerStatuses": [status]}));
    let found = findings(&pod, &Observation::default(), &Earlier::default()).remove(0);
    assert_eq!(
        (found.cause, found.sentence.as_str()),
        (
            Cause::ImagePlatform,
            "the image a:1 is not built for the processor of this node, but for linux/amd64"
        )
    );
}

fn pull_fails(message: &str) -> Finding {
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": message}});
    let status = json!({"name": "web", "image": "a:1", "state": waiting});
    let pod = pod(&json!({}), &json!({"containerStatuses": [status]}));
    findings(&pod, &Observation::default(), &Earlier::default()).remove(0)
}

#[test]
fn a_pull_that_fails_in_unknown_words_does_not_blame_the_network() {
    let found = pull_fails("failed to extract layer: mkdir /var/lib/rancher: permission denied");
    assert_eq!(
        (found.cause, found.sentence.as_str()),
        (
            Cause::ImageUnreachable,
            "the image a:1 cannot be pulled: see the evidence"
        )
    );
}

#[test]
fn the_name_of_an_image_says_nothing_about_its_pull() {
    let message =
        "failed to resolve reference \"reg.example/denied:1\": reg.example/denied:1: not found";
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": message}});
    let status = json!({"name": "web", "image": "reg.example/denied:1", "state": waiting});
    let pod = pod(&json!({}), &json!({"containerStatuses": [status]}));
    let found = findings(&pod, &Observation::default(), &Earlier::default()).remove(0);
    assert_eq!(found.cause, Cause::ImageNotFound);
}

#[test]
fn a_container_that_was_killed_before_ends_by_itself_now() {
    let found = |started: &str| {
        let last = json!({"exitCode": 3, "reason": "Error", "startedAt": started});
        let status = json!({"name": "web", "restartCount": 4, "lastState": {"terminated": last},
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        let spec = json!({"restartPolicy": "Always", "containers": [{"name": "web"}]});
        let pod = pod(&spec, &json!({"containerStatuses": [status]}));
        let mut seen = Observation::default();
        seen.add(Object::reduced(
            "Event",
            &json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": "Killing",
                "lastTimestamp": "2026-01-01T10:00:00Z",
                "message": "Container web failed liveness probe, will be restarted",
                "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "p", "uid": "p",
                    "fieldPath": "spec.containers{web}"}}),
        ));
        let count = ends(&pod, &seen).len();
        let found = findings(&pod, &seen, &Earlier::default()).remove(0);
        (found.cause, count)
    };
    assert_eq!(found("2026-01-01T09:59:00Z"), (Cause::ProbeLiveness, 0));
    assert_eq!(found("2026-01-01T10:03:00Z"), (Cause::CrashLoop, 1));
}

#[test]
fn an_image_that_its_node_cannot_read_is_not_late() {
    let message = "Failed to inspect image \"a:1\": rpc error: code = Unknown desc = failed to get image: content digest sha256:aa: not found";
    let waiting = json!({"waiting": {"reason": "ImageInspectError", "message": message}});
    let status = json!({"name": "web", "image": "a:1", "state": waiting});
    let pod = pod(&json!({}), &json!({"containerStatuses": [status]}));
    let found = findings(&pod, &Observation::default(), &Earlier::default()).remove(0);
    assert_eq!(
        (found.cause, found.sentence.as_str()),
        (
            Cause::NodeRuntime,
            "the container runtime of the node cannot read the image a:1 that it has"
        )
    );
}

#[test]
fn a_pull_secret_that_does_not_exist_is_named() {
    let found = |event: &str, pull: &str| {
        let message = "Unable to retrieve some image pull secrets (regcred); attempting to pull the image may not succeed.";
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": pull}});
        let status = json!({"name": "web", "image": "a:1", "state": waiting});
        let pod = pod(&json!({}), &json!({"containerStatuses": [status]}));
        let found = findings(&pod, &events(&[(event, message, 5)]), &Earlier::default()).remove(0);
        found
            .sentence
            .ends_with("a pull secret of the Pod does not exist")
            && found.evidence.contains("(regcred)")
    };
    let refused = "failed to authorize: 401 Unauthorized";
    assert!(found("FailedToRetrieveImagePullSecret", refused));
    assert!(!found("Pulling", refused));
    assert!(!found(
        "FailedToRetrieveImagePullSecret",
        "dial tcp 192.0.2.1:443: i/o timeout"
    ));
}

#[test]
fn a_registry_that_refuses_an_image_may_not_have_it() {
    let found =
        pull_fails("pull access denied, repository does not exist or may require authorization");
    assert_eq!(found.cause, Cause::ImageUnauthorized);
    assert!(
        found
            .sentence
            .contains("its name is wrong, or the pull secret")
    );
    assert!(found.fix.starts_with("check the name first"));
}
