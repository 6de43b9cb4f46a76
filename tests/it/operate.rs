//! `docs/operate.md`: every condition and every check of the doctor. Its checks come from their
//! table, its conditions from the list here, which has exactly those of the program.
//! `UPDATE_EXPECT=1` writes it.

use std::fmt::Write as _;

use expect_test::expect_file;
use pipeops_agent::core::{doctor, health::Severity};

const HEAD: &str = "\
# Operate

Every condition that `pipeops-agent status`, the dashboard, `/readyz`, notifications and the control plane report, and what to do about it.
On your machine `pipeops-agent status` lists them with exact names and commands, the worst first, and `pipeops-agent why ID` shows the
evidence for one. This page is generated from the program.

| to | type |
|---|---|
| see what is wrong | `pipeops-agent status` |
| see why | `pipeops-agent why`, `pipeops-agent why link` |
| check the machine | `sudo pipeops-agent doctor` |
| read the log | `journalctl -u pipeops-agent -n 200`; with OpenRC `tail -n 200 /var/log/pipeops-agent.log` |
| restart the agent | `sudo systemctl restart pipeops-agent`; with OpenRC `sudo rc-service pipeops-agent restart` |
| create a support bundle, without secrets | `sudo pipeops-agent bundle` |

k3s and what runs in it do not depend on the agent: it can be stopped, restarted, upgraded and removed at any time.
";

/// Names of notes of the store: they have the form of a condition, and nobody is shown them.
const NOTES: [&str; 7] = [
    "access.handle",
    "access.override",
    "access.shared",
    "dashboard.keys",
    "lease.name",
    "lease.rivals",
    "notify.told",
];

/// Conditions that share their name with a setting: the list of names does not have them.
const BESIDE: [&str; 3] = ["apps.folder", "dashboard.listen", "dashboard.socket"];

/// Id, what it means, what to do.
const CONDITIONS: &[[&str; 3]] = &[
    [
        "access.not-kept",
        "The access level that was set on this machine is not on disk yet, so a restart would lose it.",
        "Repair the disk; the level is then saved automatically.",
    ],
    [
        "access.rbac",
        "The agent's manifest is not in the cluster, or only in part: calls from the control plane fail.",
        "`pipeops-agent rbac` prints the manifest; apply it with the command that the status shows.",
    ],
    [
        "access.rbac-differs",
        "The cluster has another version of the manifest, or somebody changed it.",
        "Apply `pipeops-agent rbac` again.",
    ],
    [
        "access.second-lock",
        "The admission policies, which hold even where a role grants too much, are missing, changed or not supported by this Kubernetes.",
        "Apply `pipeops-agent rbac` again; without support upgrade Kubernetes to 1.30 or later.",
    ],
    [
        "access.token-shared",
        "The control plane holds a token of the cluster, because `access.share_token` is true.",
        "Set `access.share_token = false` if it does not need it.",
    ],
    [
        "access.token-withheld",
        "No token is shared although the configuration says so; the reason is in the status.",
        "As the status says; usually apply `pipeops-agent rbac`.",
    ],
    [
        "access.tokens-still-good",
        "Tokens that the control plane received are valid although access is stricter now.",
        "Let the cluster answer; the agent keeps trying. A token expires within an hour anyway.",
    ],
    [
        "access.unknown",
        "The access level that was set on this machine cannot be read, so every request is refused.",
        "`sudo pipeops-agent access managed`, or the level that you want.",
    ],
    [
        "agent.safe-mode",
        "The agent crashed or was killed four times in a row: only the link and the local page run.",
        "Read the log before each start, fix the cause and restart the agent. After an hour it tries everything again by itself.",
    ],
    [
        "agent.settings",
        "The settings contain a mistake; the status names its file and line. Only the page on this machine and the socket work: no link, no deploys, no measurements.",
        "Correct the line; the file is read again every few seconds, without a restart. `pipeops-agent config check` names all mistakes.",
    ],
    [
        "apps.drift",
        "An app differs from what was deployed, and the agent cannot correct it: a volume claim was deleted, somebody keeps changing a field, the API server refuses it, or the agent may not watch the objects.",
        "As the status says; `pipeops-agent apps show web` lists it, and `docs/apps.md` explains it.",
    ],
    [
        "apps.folder",
        "The folder of apps (`apps.folder`) cannot be used, or an entry in it has no valid app name. Running apps are not affected.",
        "As the status says; `docs/apps.md` explains it.",
    ],
    [
        "apps.source",
        "The Git repository, file or sub-folder of an app cannot be used; the app stays as it is.",
        "`pipeops-agent apps show web` has the cause; `docs/apps.md` explains it. Once it is fixed: `sudo pipeops-agent apps pull web`.",
    ],
    [
        "clock.wrong",
        "The clock is before a time that has certainly passed.",
        "Synchronize it with a time server; `pipeops-agent doctor` shows which service is installed.",
    ],
    [
        "cluster.events-hidden",
        "The agent may not read events of the cluster.",
        "Apply `pipeops-agent rbac`.",
    ],
    [
        "cluster.logs-hidden",
        "The agent may not read logs, so last lines of failed containers are not stored.",
        "Apply `pipeops-agent rbac`.",
    ],
    [
        "cluster.node-not-ready",
        "A node is not Ready.",
        "`kubectl describe node NODE`.",
    ],
    [
        "cluster.none",
        "No cluster is configured: only this machine is reported.",
        "Install k3s, or set `agent.kubeconfig`.",
    ],
    [
        "cluster.refused",
        "The API server rejects the agent's requests.",
        "Give the agent a kubeconfig that is valid: `agent.kubeconfig`.",
    ],
    [
        "cluster.sampled-in-part",
        "The cluster is too large to measure all of it, or Pods come and go too fast.",
        "None needed; the status says what is measured as one sum.",
    ],
    [
        "cluster.stats-unread",
        "No usage data of nodes and Pods.",
        "Apply `pipeops-agent rbac` with the option that the status shows.",
    ],
    [
        "cluster.unreachable",
        "The API server does not answer.",
        "`journalctl -u k3s -n 50`; the agent keeps trying.",
    ],
    [
        "cluster.unwatched",
        "Nodes and Pods cannot be watched although the API server answers.",
        "As the status says; usually apply `pipeops-agent rbac`.",
    ],
    [
        "dashboard.certificate",
        "The certificate of the page for other machines cannot be used, or its key can be read by others.",
        "As the status says: a path, a file mode, or an expiry date.",
    ],
    [
        "dashboard.listen",
        "The page cannot be served at the address of `dashboard.listen`. The socket works, so `status` does.",
        "`ss -tlpn` shows who has the port; set another `dashboard.listen`.",
    ],
    [
        "dashboard.socket",
        "The socket that the command line asks cannot be opened.",
        "As the status on the page and the log say: usually a folder that is missing or belongs to somebody else.",
    ],
    [
        "delivery.ignored",
        "The control plane acknowledges records that were never sent. The acknowledgement is ignored, and the records are sent again.",
        "Tell the operator of the control plane; nothing is lost here.",
    ],
    [
        "delivery.unacknowledged",
        "The control plane receives records but does not acknowledge them. They stay here and are sent again.",
        "Tell the operator of the control plane; nothing is lost here while the disk budget lasts.",
    ],
    [
        "files.hung",
        "A file that the agent reads is on a disk that does not respond: a token, a certificate, a kubeconfig.",
        "`dmesg | tail -n 40`; a card or cable that hangs is about to fail.",
    ],
    [
        "identity.copied",
        "This disk is a copy of another machine, so this one registers as new.",
        "None needed for a new machine; after a change of the board remove the old cluster in the control plane.",
    ],
    [
        "identity.go-agent-runs",
        "The Go agent still runs in the cluster, so this one does not connect.",
        "`kubectl -n pipeops-system scale deployment pipeops-agent --replicas=0`; this agent then takes over.",
    ],
    [
        "identity.shared",
        "Two machines have the same agent id in their configuration.",
        "Remove `pipeops.agent_id` from one of them.",
    ],
    [
        "k3s.copies",
        "Backups of k3s are not being copied to the bucket of `k3s.backup_s3`, or there is none to copy.",
        "As the status says; `docs/k3s.md` (Copy it elsewhere) has the rights that the key needs.",
    ],
    [
        "k3s.fault",
        "Monitoring of k3s found a fault that is not repaired automatically, or whose repair failed.",
        "As the status says; `docs/faults.md` has every fault.",
    ],
    [
        "lease.rbac",
        "The agent may not use the Lease that decides which agent of the cluster links.",
        "Apply `pipeops-agent rbac`.",
    ],
    [
        "lease.standby",
        "Another agent of this cluster holds the link; this one takes over when that one is gone.",
        "None needed.",
    ],
    [
        "lease.unreachable",
        "The API server does not answer, and another agent may hold the link.",
        "`kubectl get --raw /readyz` on this machine; the agent keeps trying.",
    ],
    [
        "link.connecting",
        "There has been no session since the agent started.",
        "Wait some seconds; then `pipeops-agent link`.",
    ],
    [
        "link.down",
        "The control plane cannot be reached. Local work goes on.",
        "`pipeops-agent link` says which side is broken; the agent keeps trying.",
    ],
    [
        "link.held",
        "Something on this machine prevents the link; the status names it.",
        "As the status says.",
    ],
    [
        "link.lost",
        "The session ended; an event, not a state.",
        "None needed if the link is back: `pipeops-agent link`.",
    ],
    [
        "link.refused",
        "The control plane refuses the token.",
        "`sudo pipeops-agent token rotate` with a new token.",
    ],
    [
        "link.settings",
        "A setting of the link cannot be used, such as a missing CA file.",
        "As the status says; `pipeops-agent config check`.",
    ],
    [
        "link.standby",
        "Another agent of this cluster holds the link.",
        "None needed.",
    ],
    [
        "machine.doctor",
        "The doctor found problems on this machine.",
        "`sudo pipeops-agent doctor`.",
    ],
    [
        "notify.unreached",
        "The receiver of notifications does not accept them.",
        "`docs/notify.md`; the status has its answer.",
    ],
    [
        "store.audit-lost",
        "Audit entries were lost because the disk could not be written for too long.",
        "Fix the disk: `pipeops-agent doctor`.",
    ],
    [
        "store.damaged",
        "`state.db` was damaged and has been recreated; the damaged file was kept.",
        "Check the disk: `dmesg | grep -i error`; remove the damaged file when nobody needs it.",
    ],
    [
        "store.full",
        "The disk of the state directory is full.",
        "Make room: `df -h`, `du -xh / | sort -h | tail`.",
    ],
    [
        "store.hung",
        "The disk of the state directory does not respond. Calls that must be recorded first are refused.",
        "`dmesg | tail -n 40`; a card or cable that hangs is about to fail.",
    ],
    [
        "store.newer",
        "The database was written by a newer version and is not opened: changes, and calls that must be recorded first, are refused. The dashboard and the link keep working.",
        "Install the newer version again, or move the file away to start with a new one.",
    ],
    [
        "store.other-identity",
        "The identity on disk is not the one in use.",
        "Restart the agent to use the one on disk.",
    ],
    [
        "store.unwritable",
        "The database cannot be opened or written; the agent continues from memory, and no change can begin.",
        "As the status says: a read-only file system, an owner, a failing disk.",
    ],
    [
        "telemetry.damaged",
        "`telemetry.db` was damaged and has been recreated.",
        "Check the disk: `dmesg | grep -i error`.",
    ],
    [
        "telemetry.events-dropped",
        "Too many different events at once; some were not stored.",
        "`kubectl get events -A --sort-by=.lastTimestamp`.",
    ],
    [
        "telemetry.lost",
        "Samples, events and log lines were lost because the disk could not be written for too long.",
        "Fix the disk: `pipeops-agent doctor`.",
    ],
    [
        "telemetry.newer",
        "A newer version wrote the samples, and this one does not touch them.",
        "Install the newer version again, or move the file away to start with a new one.",
    ],
    [
        "telemetry.oversized",
        "`telemetry.db` is larger than `telemetry.disk_max` and cannot be made smaller now.",
        "Make room on the disk; the agent tries again.",
    ],
    [
        "telemetry.remote-write",
        "The receiver of remote write cannot be reached.",
        "`docs/remote-write.md`; the agent keeps trying, nothing is lost while the disk budget lasts.",
    ],
    [
        "telemetry.remote-write-refused",
        "The receiver of remote write refuses samples.",
        "`docs/remote-write.md`; the status has its answer.",
    ],
    [
        "telemetry.stuck",
        "The kernel does not answer a measurement.",
        "`dmesg | tail`; a disk or sensor that hangs blocks every program that reads it.",
    ],
    [
        "telemetry.thinned",
        "The disk budget of the samples is used up, so single values were deleted early.",
        "Raise `telemetry.disk_max`, or let receivers catch up: `pipeops-agent metrics outbox`.",
    ],
    [
        "telemetry.too-many-series",
        "Too many series are measured at once, or come and go.",
        "`kubectl get pods -A --sort-by=.metadata.creationTimestamp` shows what comes and goes.",
    ],
    [
        "telemetry.unread",
        "Something cannot be measured on this machine.",
        "None needed; the status says what and why.",
    ],
    [
        "telemetry.unwritable",
        "The samples cannot be written; the last hour of them waits in memory.",
        "As the status says: a read-only file system, an owner, a failing disk.",
    ],
    [
        "workloads.not-ready",
        "Pods are not ready.",
        "`kubectl -n NAMESPACE describe pod POD`; the status names one.",
    ],
];

#[test]
fn the_page_of_conditions_is_what_the_tables_say() {
    expect_file!["../../docs/operate.md"].assert_eq(&page());
}

#[test]
fn every_condition_of_the_program_has_its_fix() {
    let known = include_str!("../data/contract/conditions.txt");
    let known = known.lines().filter(|id| !NOTES.contains(id));
    let mut known: Vec<&str> = known.chain(BESIDE).collect();
    known.sort_unstable();
    let told: Vec<&str> = CONDITIONS.iter().map(|[id, ..]| *id).collect();
    assert_eq!(told, known);
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## Conditions\n\n| condition | means | fix |\n|---|---|---|\n");
    for [id, means, fix] in CONDITIONS {
        let fix = fix.replace(" | ", " \\| ");
        writeln!(page, "| `{id}` | {means} | {fix} |").unwrap();
    }
    page.push_str(
        "\n## Checks of the doctor\n\n`sudo pipeops-agent doctor` shows what each of them saw and the commands for this board, distribution and boot\nloader; `--fix` applies the safe repairs, and `pipeops-agent undo` reverts them.\n\n| check | looks at | severity | why it matters |\n|---|---|---|---|\n",
    );
    for check in doctor::checks() {
        let severity = match check.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        };
        let why = check.why.replace('|', "\\|");
        writeln!(
            page,
            "| `{}` | {} | {severity} | {why} |",
            check.id, check.title
        )
        .unwrap();
    }
    page
}
