//! Causes with their stable ids: where each lies, and how long it must hold before waiting is
//! pointless.

use std::time::Duration;

/// Side on which a cause lies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Blame {
    /// The app: its manifest, its image, its configuration.
    App,
    /// Node, disk, network, registry: a change is held until it is over.
    Outside,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $blame:ident, $hold:literal;)*) => {
        /// Cause why a version is not good; the more telling ones first.
        #[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
        pub enum Cause {
            $($(#[$doc])* $name,)*
        }

        impl Cause {
            /// All causes.
            #[cfg(feature = "internals")]
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Stable id in the API and in records.
            pub const fn id(self) -> &'static str {
                match self { $(Self::$name => $id,)* }
            }

            /// Side on which it lies.
            pub const fn blame(self) -> Blame {
                match self { $(Self::$name => Blame::$blame,)* }
            }

            /// Time for which it must hold before the version is bad, where it is definite.
            pub const fn hold(self) -> Duration {
                Duration::from_secs(match self { $(Self::$name => $hold,)* })
            }
        }
    };
}

// Images 60 s: a build may be pushing the tag right now. What the API server or the kubelet refuses
// 5 s: its objects were all applied before, so nothing else is coming, but a kubelet may have read
// an older ConfigMap. Routes 20 s: EndpointSlices follow the Pods by a few seconds on a slow board.
causes! {
    /// The registry knows no such image.
    ImageNotFound = "image.not-found", App, 60;
    /// The registry refuses the credentials, or there are none.
    ImageUnauthorized = "image.unauthorized", App, 60;
    /// The image is not built for this processor.
    ImagePlatform = "image.platform", App, 10;
    /// The image has a format that the container runtime does not read any more.
    ImageFormat = "image.format", App, 10;
    /// The name of the image cannot be read.
    ImageInvalid = "image.invalid-name", App, 5;
    /// The image is not on the node and may not be pulled.
    ImageAbsent = "image.absent", App, 10;
    /// The container used more memory than its limit.
    Oom = "container.oom", App, 0;
    /// The command cannot be started.
    ContainerStart = "container.start", App, 0;
    /// An init container fails again and again.
    InitCrash = "init.crash-loop", App, 0;
    /// The startup probe fails.
    ProbeStartup = "probe.startup", App, 0;
    /// The liveness probe fails, so the container is restarted again and again.
    ProbeLiveness = "probe.liveness", App, 0;
    /// The container ends again and again.
    CrashLoop = "container.crash-loop", App, 0;
    /// A ConfigMap, a Secret, a key or an account is missing.
    ConfigMissing = "config.missing", App, 5;
    /// The container may not run under its user.
    ContainerUser = "container.user", App, 5;
    /// The quota of the namespace is used up.
    Quota = "quota.exceeded", App, 5;
    /// The limits of the namespace do not allow it.
    LimitRange = "limits.violated", App, 5;
    /// A policy or webhook refuses the Pods.
    Admission = "admission.refused", App, 5;
    /// The Job has failed.
    JobFailed = "job.failed", App, 0;
    /// The Job ran longer than it may.
    JobDeadline = "job.deadline", App, 0;
    /// The claim names a storage class that is not there.
    StorageNoClass = "storage.no-class", App, 20;
    /// The claim is not bound to a volume.
    StorageUnbound = "storage.unbound", App, 60;
    /// No node has enough processor left.
    ScheduleCpu = "scheduling.cpu", App, 20;
    /// No node has enough memory left.
    ScheduleMemory = "scheduling.memory", App, 20;
    /// All nodes have taints that the Pod does not tolerate.
    ScheduleTaint = "scheduling.taint", App, 20;
    /// No node matches the selector or the affinity.
    ScheduleAffinity = "scheduling.affinity", App, 20;
    /// The port of the node is taken.
    SchedulePorts = "scheduling.ports", App, 20;
    /// No node fits, for another reason.
    Schedule = "scheduling.other", App, 60;
    /// The readiness probe fails.
    ProbeReadiness = "probe.readiness", App, 0;
    /// The Pod used more of the disk than its limit and was evicted.
    EvictedOwn = "pod.evicted", App, 10;
    /// The Service selects no Pods.
    ServiceNoEndpoints = "service.no-endpoints", App, 20;
    /// The Service names a port that its Pods do not have.
    ServiceWrongPort = "service.wrong-port", App, 20;
    /// The Ingress leads to a Service that is not there.
    IngressNoBackend = "ingress.no-backend", App, 20;
    /// The Ingress has no class.
    IngressNoClass = "ingress.no-class", App, 20;
    /// The helm-controller says that it does not install the chart.
    ChartFailed = "chart.failed", App, 20;
    /// A custom resource says that it does not go on by itself.
    CustomStalled = "custom.stalled", App, 20;
    /// A custom resource says that it is not ready.
    CustomNotReady = "custom.not-ready", App, 0;
    /// Pods run the version of before until a person deletes them (updateStrategy: OnDelete).
    OnDelete = "rollout.on-delete", App, 0;
    /// Not everything was ready in time, for no reason that the cluster names.
    Deadline = "rollout.deadline", App, 0;
    /// The registry does not answer.
    ImageUnreachable = "image.unreachable", Outside, 0;
    /// The registry asks for patience.
    ImageRateLimited = "image.rate-limited", Outside, 0;
    /// The node does not trust the certificate of the registry.
    ImageCertificate = "image.certificate", Outside, 0;
    /// The registry speaks no TLS.
    ImagePlainHttp = "image.plain-http", Outside, 0;
    /// By the clock of the node, the certificate of the registry is not valid yet.
    NodeClock = "node.clock", Outside, 0;
    /// The node has no room for the image.
    ImageDisk = "image.disk-full", Outside, 0;
    /// The node is not ready.
    NodeNotReady = "node.not-ready", Outside, 0;
    /// The node lacks memory, disk or process ids.
    NodePressure = "node.pressure", Outside, 0;
    /// The node takes no Pods (cordoned).
    NodeCordoned = "node.cordoned", Outside, 0;
    /// The node cannot make the network or the sandbox of the Pod.
    NodeSandbox = "node.sandbox", Outside, 0;
    /// The container runtime of the node does not make the container, or its kubelet does not read
    /// what it mounts.
    NodeRuntime = "node.runtime", Outside, 0;
    /// The API server, its datastore or a webhook does not answer.
    ApiTrouble = "api.unavailable", Outside, 0;
    /// A volume, its node or its provisioner is not there now.
    StorageUnavailable = "storage.unavailable", Outside, 0;
    /// Programs say that DNS does not answer.
    DnsUnavailable = "dns.unavailable", Outside, 0;
    /// The account that deploys may not do what the change needs.
    AccessRefused = "access.refused", Outside, 0;
    /// An object that is being deleted is kept by a finalizer.
    Finalizer = "object.finalizer", Outside, 0;
    /// The node is still pulling the image.
    ImagePulling = "image.pulling", Outside, 0;
    /// A Pod of before is still terminating, and its controller waits for that.
    PodTerminating = "pod.terminating", Outside, 0;
}
