//! The fields of a Pod that the standards read.

use super::super::schema::{Field, FieldKind, Others, Schema, field};

/// Annotations that older clusters use in place of fields.
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

const fn json(name: &'static str, kind: FieldKind) -> Field {
    field(name, 0, kind)
}

pub(super) static POD: Schema = Schema::of(&[
    json("metadata", FieldKind::Object(&METADATA)),
    json("spec", FieldKind::Object(&SPEC)),
]);
static METADATA: Schema = Schema::of(&[json("annotations", FieldKind::TextMap(&[APP_ARMOR]))]);
static SPEC: Schema = Schema::of(&[
    json("hostNetwork", FieldKind::Flag),
    json("hostPID", FieldKind::Flag),
    json("hostIPC", FieldKind::Flag),
    json("os", FieldKind::Object(&NAMED)),
    json("securityContext", FieldKind::Object(&POD_CONTEXT)),
    json("volumes", FieldKind::Objects(&VOLUME)),
    json("initContainers", FieldKind::Objects(&CONTAINER)),
    json("containers", FieldKind::Objects(&CONTAINER)),
    json("ephemeralContainers", FieldKind::Objects(&CONTAINER)),
]);
static NAMED: Schema = Schema::of(&[json("name", FieldKind::Text)]);
static TYPED: Schema = Schema::of(&[json("type", FieldKind::Text)]);
static POD_CONTEXT: Schema = Schema::of(&[
    json("appArmorProfile", FieldKind::Object(&TYPED)),
    json("seccompProfile", FieldKind::Object(&TYPED)),
    json("seLinuxOptions", FieldKind::Object(&SE_LINUX)),
    json("sysctls", FieldKind::Objects(&NAMED)),
    json("windowsOptions", FieldKind::Object(&WINDOWS)),
    json("runAsNonRoot", FieldKind::Flag),
    json("runAsUser", FieldKind::Number),
]);
static CONTEXT: Schema = Schema::of(&[
    json("privileged", FieldKind::Flag),
    json("allowPrivilegeEscalation", FieldKind::Flag),
    json("capabilities", FieldKind::Object(&CAPABILITIES)),
    json("procMount", FieldKind::Text),
    json("appArmorProfile", FieldKind::Object(&TYPED)),
    json("seccompProfile", FieldKind::Object(&TYPED)),
    json("seLinuxOptions", FieldKind::Object(&SE_LINUX)),
    json("windowsOptions", FieldKind::Object(&WINDOWS)),
    json("runAsNonRoot", FieldKind::Flag),
    json("runAsUser", FieldKind::Number),
]);
static CAPABILITIES: Schema = Schema::of(&[
    json("add", FieldKind::Texts),
    json("drop", FieldKind::Texts),
]);
static SE_LINUX: Schema = Schema::of(&[
    json("type", FieldKind::Text),
    json("user", FieldKind::Text),
    json("role", FieldKind::Text),
]);
static WINDOWS: Schema = Schema::of(&[json("hostProcess", FieldKind::Flag)]);
static VOLUME: Schema = Schema {
    fields: &[
        json("name", FieldKind::Text),
        json("configMap", FieldKind::Presence),
        json("csi", FieldKind::Presence),
        json("downwardAPI", FieldKind::Presence),
        json("emptyDir", FieldKind::Presence),
        json("ephemeral", FieldKind::Presence),
        json("hostPath", FieldKind::Presence),
        json("image", FieldKind::Presence),
        json("persistentVolumeClaim", FieldKind::Presence),
        json("projected", FieldKind::Presence),
        json("secret", FieldKind::Presence),
    ],
    others: Others::Keep,
};
static CONTAINER: Schema = Schema::of(&[
    json("name", FieldKind::Text),
    json("ports", FieldKind::Objects(&PORT)),
    json("securityContext", FieldKind::Object(&CONTEXT)),
    json("livenessProbe", FieldKind::Object(&HANDLER)),
    json("readinessProbe", FieldKind::Object(&HANDLER)),
    json("startupProbe", FieldKind::Object(&HANDLER)),
    json("lifecycle", FieldKind::Object(&LIFECYCLE)),
]);
static PORT: Schema = Schema::of(&[json("hostPort", FieldKind::Number)]);
static LIFECYCLE: Schema = Schema::of(&[
    json("postStart", FieldKind::Object(&HANDLER)),
    json("preStop", FieldKind::Object(&HANDLER)),
]);
static HANDLER: Schema = Schema::of(&[
    json("httpGet", FieldKind::Object(&HOST)),
    json("tcpSocket", FieldKind::Object(&HOST)),
]);
static HOST: Schema = Schema::of(&[json("host", FieldKind::Text)]);
