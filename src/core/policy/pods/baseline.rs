//! The standard `baseline`: no way to the host.

use serde_json::Value;

use super::{Breach, breach, containers, contexts, field, is_true, list, schema::APP_ARMOR, text};

const CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

const SE_LINUX_TYPES: &[&str] = &[
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];

/// Handlers in which a probe or hook names a host.
const HANDLERS: &[&str] = &[
    "/livenessProbe",
    "/readinessProbe",
    "/startupProbe",
    "/lifecycle/postStart",
    "/lifecycle/preStop",
];

/// Every field that the standard forbids.
pub(super) fn check(pod: &Value, found: &mut Vec<Breach>) {
    whole(pod, found);
    for context in contexts(pod) {
        profiles(&context.place, context.value, found);
    }
    for container in containers(pod) {
        of_container(&container.place, container.value, found);
    }
}

/// Rules on the Pod itself.
fn whole(pod: &Value, found: &mut Vec<Breach>) {
    for name in ["hostNetwork", "hostPID", "hostIPC"] {
        if is_true(pod, &format!("/spec/{name}")) {
            found.push(breach(format!("spec.{name}"), "true"));
        }
    }
    for volume in list(pod, "/spec/volumes") {
        if volume.get("hostPath").is_some() {
            let name = text(volume, "/name");
            found.push(breach(format!("spec.volumes[{name:?}].hostPath"), "set"));
        }
    }
    for sysctl in list(pod, "/spec/securityContext/sysctls") {
        let name = text(sysctl, "/name");
        if !SYSCTLS.contains(&name) {
            let place = "spec.securityContext.sysctls".to_owned();
            found.push(breach(place, format!("{name:?}")));
        }
    }
    let annotations = pod.pointer("/metadata/annotations");
    for (name, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let is_fine = matches!(value, "" | "runtime/default") || value.starts_with("localhost/");
        if name.starts_with(APP_ARMOR) && !is_fine {
            let place = format!("metadata.annotations[{name:?}]");
            found.push(breach(place, format!("{value:?}")));
        }
    }
}

/// Rules on the Pod and each container.
fn profiles(place: &str, of: &Value, found: &mut Vec<Breach>) {
    let mut forbid = |path: &str, value: String| found.push(breach(field(place, path), value));
    for path in [
        "/securityContext/appArmorProfile",
        "/securityContext/seccompProfile",
    ] {
        let Some(profile) = of.pointer(path) else {
            continue;
        };
        let kind = text(profile, "/type");
        if !matches!(kind, "RuntimeDefault" | "Localhost") {
            forbid(&format!("{path}/type"), format!("{kind:?}"));
        }
    }
    let path = "/securityContext/seLinuxOptions";
    for (name, allowed) in [("type", SE_LINUX_TYPES), ("user", &[""]), ("role", &[""])] {
        let path = format!("{path}/{name}");
        let value = text(of, &path);
        if !allowed.contains(&value) {
            forbid(&path, format!("{value:?}"));
        }
    }
    let path = "/securityContext/windowsOptions/hostProcess";
    if is_true(of, path) {
        forbid(path, "true".to_owned());
    }
}

/// Rules on a container only.
fn of_container(place: &str, container: &Value, found: &mut Vec<Breach>) {
    let mut forbid = |path: &str, value: String| found.push(breach(field(place, path), value));
    let path = "/securityContext/privileged";
    if is_true(container, path) {
        forbid(path, "true".to_owned());
    }
    let path = "/securityContext/capabilities/add";
    for capability in list(container, path) {
        let name = capability.as_str().unwrap_or_default();
        if !CAPABILITIES.contains(&name) {
            forbid(path, format!("{name:?}"));
        }
    }
    let path = "/securityContext/procMount";
    let mount = container.pointer(path).and_then(Value::as_str);
    if let Some(mount) = mount.filter(|mount| *mount != "Default") {
        forbid(path, format!("{mount:?}"));
    }
    for port in list(container, "/ports") {
        let number = port.pointer("/hostPort").and_then(Value::as_i64);
        if let Some(number) = number.filter(|number| *number != 0) {
            forbid("/ports/hostPort", number.to_string());
        }
    }
    for handler in HANDLERS {
        for kind in ["httpGet", "tcpSocket"] {
            let path = format!("{handler}/{kind}/host");
            let host = text(container, &path);
            if !host.is_empty() {
                forbid(&path, format!("{host:?}"));
            }
        }
    }
}
