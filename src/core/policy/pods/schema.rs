//! The fields of a Pod that the standards read.

use super::super::shape::{Field, Kind, Others, Shape, field};

/// Annotations that older clusters use in place of fields.
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

const fn json(name: &'static str, kind: Kind) -> Field {
    field(name, 0, kind)
}

pub(super) static POD: Shape = Shape::of(&[
    json("metadata", Kind::Object(&METADATA)),
    json("spec", Kind::Object(&SPEC)),
]);
static METADATA: Shape = Shape::of(&[json("annotations", Kind::TextMap(&[APP_ARMOR]))]);
static SPEC: Shape = Shape::of(&[
    json("hostNetwork", Kind::Flag),
    json("hostPID", Kind::Flag),
    json("hostIPC", Kind::Flag),
    json("os", Kind::Object(&NAMED)),
    json("securityContext", Kind::Object(&POD_CONTEXT)),
    json("volumes", Kind::Objects(&VOLUME)),
    json("initContainers", Kind::Objects(&CONTAINER)),
    json("containers", Kind::Objects(&CONTAINER)),
    json("ephemeralContainers", Kind::Objects(&CONTAINER)),
]);
static NAMED: Shape = Shape::of(&[json("name", Kind::Text)]);
static TYPED: Shape = Shape::of(&[json("type", Kind::Text)]);
static POD_CONTEXT: Shape = Shape::of(&[
    json("appArmorProfile", Kind::Object(&TYPED)),
    json("seccompProfile", Kind::Object(&TYPED)),
    json("seLinuxOptions", Kind::Object(&SE_LINUX)),
    json("sysctls", Kind::Objects(&NAMED)),
    json("windowsOptions", Kind::Object(&WINDOWS)),
    json("runAsNonRoot", Kind::Flag),
    json("runAsUser", Kind::Number),
]);
static CONTEXT: Shape = Shape::of(&[
    json("privileged", Kind::Flag),
    json("allowPrivilegeEscalation", Kind::Flag),
    json("capabilities", Kind::Object(&CAPABILITIES)),
    json("procMount", Kind::Text),
    json("appArmorProfile", Kind::Object(&TYPED)),
    json("seccompProfile", Kind::Object(&TYPED)),
    json("seLinuxOptions", Kind::Object(&SE_LINUX)),
    json("windowsOptions", Kind::Object(&WINDOWS)),
    json("runAsNonRoot", Kind::Flag),
    json("runAsUser", Kind::Number),
]);
static CAPABILITIES: Shape = Shape::of(&[json("add", Kind::Texts), json("drop", Kind::Texts)]);
static SE_LINUX: Shape = Shape::of(&[
    json("type", Kind::Text),
    json("user", Kind::Text),
    json("role", Kind::Text),
]);
static WINDOWS: Shape = Shape::of(&[json("hostProcess", Kind::Flag)]);
static VOLUME: Shape = Shape {
    fields: &[
        json("name", Kind::Text),
        json("configMap", Kind::Presence),
        json("csi", Kind::Presence),
        json("downwardAPI", Kind::Presence),
        json("emptyDir", Kind::Presence),
        json("ephemeral", Kind::Presence),
        json("hostPath", Kind::Presence),
        json("image", Kind::Presence),
        json("persistentVolumeClaim", Kind::Presence),
        json("projected", Kind::Presence),
        json("secret", Kind::Presence),
    ],
    others: Others::Keep,
};
static CONTAINER: Shape = Shape::of(&[
    json("name", Kind::Text),
    json("ports", Kind::Objects(&PORT)),
    json("securityContext", Kind::Object(&CONTEXT)),
    json("livenessProbe", Kind::Object(&HANDLER)),
    json("readinessProbe", Kind::Object(&HANDLER)),
    json("startupProbe", Kind::Object(&HANDLER)),
    json("lifecycle", Kind::Object(&LIFECYCLE)),
]);
static PORT: Shape = Shape::of(&[json("hostPort", Kind::Number)]);
static LIFECYCLE: Shape = Shape::of(&[
    json("postStart", Kind::Object(&HANDLER)),
    json("preStop", Kind::Object(&HANDLER)),
]);
static HANDLER: Shape = Shape::of(&[
    json("httpGet", Kind::Object(&HOST)),
    json("tcpSocket", Kind::Object(&HOST)),
]);
static HOST: Shape = Shape::of(&[json("host", Kind::Text)]);
