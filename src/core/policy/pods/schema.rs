//! The fields of a Pod that the standards read.

use super::super::schema::{Field, Kind, Others, Schema, field};

/// Annotations that older clusters use in place of fields.
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

const fn json(name: &'static str, kind: Kind) -> Field {
    field(name, 0, kind)
}

pub(super) static POD: Schema = Schema::of(&[
    json("metadata", Kind::Object(&METADATA)),
    json("spec", Kind::Object(&SPEC)),
]);
static METADATA: Schema = Schema::of(&[json("annotations", Kind::TextMap(&[APP_ARMOR]))]);
static SPEC: Schema = Schema::of(&[
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
static NAMED: Schema = Schema::of(&[json("name", Kind::Text)]);
static TYPED: Schema = Schema::of(&[json("type", Kind::Text)]);
static POD_CONTEXT: Schema = Schema::of(&[
    json("appArmorProfile", Kind::Object(&TYPED)),
    json("seccompProfile", Kind::Object(&TYPED)),
    json("seLinuxOptions", Kind::Object(&SE_LINUX)),
    json("sysctls", Kind::Objects(&NAMED)),
    json("windowsOptions", Kind::Object(&WINDOWS)),
    json("runAsNonRoot", Kind::Flag),
    json("runAsUser", Kind::Number),
]);
static CONTEXT: Schema = Schema::of(&[
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
static CAPABILITIES: Schema = Schema::of(&[json("add", Kind::Texts), json("drop", Kind::Texts)]);
static SE_LINUX: Schema = Schema::of(&[
    json("type", Kind::Text),
    json("user", Kind::Text),
    json("role", Kind::Text),
]);
static WINDOWS: Schema = Schema::of(&[json("hostProcess", Kind::Flag)]);
static VOLUME: Schema = Schema {
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
static CONTAINER: Schema = Schema::of(&[
    json("name", Kind::Text),
    json("ports", Kind::Objects(&PORT)),
    json("securityContext", Kind::Object(&CONTEXT)),
    json("livenessProbe", Kind::Object(&HANDLER)),
    json("readinessProbe", Kind::Object(&HANDLER)),
    json("startupProbe", Kind::Object(&HANDLER)),
    json("lifecycle", Kind::Object(&LIFECYCLE)),
]);
static PORT: Schema = Schema::of(&[json("hostPort", Kind::Number)]);
static LIFECYCLE: Schema = Schema::of(&[
    json("postStart", Kind::Object(&HANDLER)),
    json("preStop", Kind::Object(&HANDLER)),
]);
static HANDLER: Schema = Schema::of(&[
    json("httpGet", Kind::Object(&HOST)),
    json("tcpSocket", Kind::Object(&HOST)),
]);
static HOST: Schema = Schema::of(&[json("host", Kind::Text)]);
