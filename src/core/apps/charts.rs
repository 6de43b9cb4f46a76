//! Charts that the helm-controller of k3s installs: what has to stand in their manifests, and the
//! accounts by which they are installed.
//!
//! The controller installs a chart with all rights, under an account in the namespace of its
//! HelmChart. So nobody but root deploys one, or a Pod that runs under such an account.

use serde_json::Value;

use super::{super::value::text, kinds::Kind};

/// Beginning of the names of accounts by which charts are installed.
const ACCOUNTS: &str = "helm-";

/// Reason why a chart, or more values of one, is refused, with its fix: it has to stay as it is
/// when it fails, because everything else may delete data, and to be the same chart tomorrow.
pub(super) fn refused(kind: &Kind, object: &Value) -> Option<(String, &'static str)> {
    // More values have a policy of their own, which wins, also by its default.
    if text(object, "/spec/failurePolicy") != "abort" {
        let why = "spec.failurePolicy is not abort, so a chart that fails would be uninstalled with its data";
        return Some((
            why.to_owned(),
            "add failurePolicy: abort to its spec; a chart that fails is then left as it is until you repair it",
        ));
    }
    let unpinned = (kind.name == "HelmChart").then(|| unpinned(object));
    let (why, fix) = unpinned.flatten()?;
    Some((format!("its chart is not pinned: {why}"), fix))
}

/// Reason why a HelmChart may be another chart tomorrow, with its fix; `None`: it is pinned.
fn unpinned(object: &Value) -> Option<(&'static str, &'static str)> {
    if !text(object, "/spec/chartContent").is_empty() {
        return None;
    }
    let (chart, version) = (text(object, "/spec/chart"), text(object, "/spec/version"));
    let is_set = |field| object.pointer(field) == Some(&Value::Bool(true));
    let source = if chart.contains("://") {
        chart
    } else {
        text(object, "/spec/repo")
    };
    let is_archive = chart.starts_with("https://");
    if !["https://", "oci://"]
        .iter()
        .any(|scheme| source.starts_with(scheme))
        || is_set("/spec/plainHTTP")
        || is_set("/spec/insecureSkipTLSVerify")
    {
        Some((
            "it is not fetched over verified TLS, so it could be replaced in transit",
            "name it by https:// or oci://, in spec.chart or spec.repo, without plainHTTP and insecureSkipTLSVerify; or send it in spec.chartContent",
        ))
    } else if is_archive && !is_of_one_version(chart) {
        Some((
            "the file name of its URL has no exact version",
            "name a file such as https://charts.example/web-1.2.3.tgz, or send it in spec.chartContent",
        ))
    } else if !is_archive && !is_exact(version) {
        Some((
            "spec.version is not one exact version",
            "name all three numbers as text and no range: version: \"1.2.3\"",
        ))
    } else {
        None
    }
}

/// Returns whether the file name of a URL is that of one version: `web-1.2.3.tgz`.
fn is_of_one_version(url: &str) -> bool {
    let file = url.rsplit('/').next();
    let Some(stem) = file.and_then(|file| file.strip_suffix(".tgz")) else {
        return false;
    };
    let stem = stem.replace("%2B", "+");
    let mut versions = stem.match_indices('-').map(|(at, _)| stem.get(at + 1..));
    versions.any(|version| version.is_some_and(is_exact))
}

/// `1.2.3`, `v1.2.3-rc.1+up4`: helm takes everything else for a range.
fn is_exact(version: &str) -> bool {
    let (version, build) = version.split_once('+').unwrap_or((version, "0"));
    let (numbers, before) = version.split_once('-').unwrap_or((version, "0"));
    let numbers: Vec<_> = numbers
        .strip_prefix('v')
        .unwrap_or(numbers)
        .split('.')
        .collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_named = |part: &str| !part.is_empty() && part.bytes().all(is_plain);
    numbers.len() == 3
        && numbers.iter().all(is_number)
        && before.split('.').all(is_named)
        && build.split('.').all(is_named)
}

/// Account of a chart that Pods of an object run under; `None`: they do not.
pub fn account_of_chart(object: &Value) -> Option<&str> {
    let pods = [
        "/spec/template/spec",
        "/spec/jobTemplate/spec/template/spec",
    ];
    let pods = pods.iter().filter_map(|at| object.pointer(at));
    let names = pods.flat_map(|pod| {
        // The second is an older name of the first.
        ["/serviceAccountName", "/serviceAccount"].map(|field| text(pod, field))
    });
    let mut names = names.filter(|name| name.starts_with(ACCOUNTS));
    names.next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::apps::{kind_of, parse};
    use serde_json::json;

    fn judged(kind: &str, spec: &Value) -> Result<(), String> {
        let kind = kind_of("helm.cattle.io/v1", kind).unwrap();
        let refused = refused(&kind, &json!({"spec": spec}));
        refused.map_or(Ok(()), |(why, _)| Err(why))
    }

    /// A chart that is pinned but for these fields.
    fn chart(fields: &Value) -> Result<(), String> {
        let mut spec = json!({"failurePolicy": "abort", "repo": "https://charts.example", "chart": "web",
            "version": "1.2.3"});
        let fields = fields.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(fields);
        judged("HelmChart", &spec)
    }

    #[test]
    fn a_chart_that_fails_stays_as_it_is() {
        assert_eq!(chart(&json!({})), Ok(()));
        for policy in [json!(null), json!(""), json!("reinstall"), json!("retry")] {
            let why = chart(&json!({"failurePolicy": policy})).unwrap_err();
            assert!(why.contains("is not abort"), "{policy}");
        }
    }

    #[test]
    fn a_chart_of_a_repository_has_one_exact_version() {
        for version in ["1.2.3", "v1.2.3", "1.2.3-rc.1+up4.5.6", "10.20.30+a"] {
            for name in ["web", "oci://charts.example/web"] {
                let of = json!({"chart": name, "version": version});
                assert_eq!(chart(&of), Ok(()), "{of}");
            }
        }
        let ranges =
            "1 1.2 1.2.x * ^1.2.3 ~1.2.3 >=1.2.3 =1.2.3 1.2.3,<2 latest 1.2.3- 1.2.3+ 1.2.3.4";
        let mut all: Vec<_> = ranges.split(' ').map(|it| json!(it)).collect();
        all.extend([json!(null), json!(1.2), json!(""), json!("1.2.3 - 2.0.0")]);
        for version in all {
            let why = chart(&json!({"version": version})).unwrap_err();
            assert!(why.contains("one exact version"), "{version}");
        }
    }

    #[test]
    fn a_chart_of_a_url_has_its_version_there_and_one_that_is_sent_needs_none() {
        for name in ["web-1.2.3", "a-b-1.2.3-rc-1", "web-1.2.3%2Bup4.5.6"] {
            let of = json!({"chart": format!("https://%{{KUBERNETES_API}}%/{name}.tgz"), "version": null});
            assert_eq!(chart(&of), Ok(()), "{name}");
        }
        for name in ["web.tgz", "web-1.2.tgz", "web-1.2.3", "web-1.2.3.tgz?a"] {
            let why = chart(&json!({"chart": format!("https://charts.example/{name}")}));
            assert!(why.unwrap_err().contains("no exact version"), "{name}");
        }
        let sent =
            json!({"chartContent": "aGVsbG8=", "chart": null, "repo": null, "version": null});
        assert_eq!(chart(&sent), Ok(()));
    }

    #[test]
    fn a_chart_comes_over_checked_tls() {
        for fields in [
            json!({"repo": "http://charts.example"}),
            json!({"repo": null}),
            json!({"chart": "http://charts.example/web-1.2.3.tgz"}),
            json!({"chart": "file:///web-1.2.3.tgz"}),
            json!({"plainHTTP": true}),
            json!({"insecureSkipTLSVerify": true}),
        ] {
            let why = chart(&fields).unwrap_err();
            assert!(why.contains("verified TLS"), "{fields}");
        }
    }

    #[test]
    fn more_values_of_a_chart_do_not_change_what_happens_when_it_fails() {
        let of = |spec: Value| judged("HelmChartConfig", &spec).is_ok();
        assert!(of(
            json!({"failurePolicy": "abort", "valuesContent": "a: b"})
        ));
        assert!(!of(json!({"valuesContent": "a: b"})));
    }

    #[test]
    fn pods_under_the_account_of_a_chart_are_found() {
        let of = |kind: &str, spec: &str| {
            let text = format!("apiVersion: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n");
            let found = parse(&text, Some("shop")).unwrap();
            account_of_chart(&found[0].object).map(str::to_owned)
        };
        let pod = "{template: {spec: {serviceAccountName: helm-web}}}";
        for kind in ["apps/v1\nkind: Deployment", "batch/v1\nkind: Job"] {
            assert_eq!(of(kind, pod).as_deref(), Some("helm-web"));
        }
        let older = "{jobTemplate: {spec: {template: {spec: {serviceAccount: helm-web}}}}}";
        assert!(of("batch/v1\nkind: CronJob", older).is_some());
        let other = "{template: {spec: {serviceAccountName: web-helm-}}}";
        assert_eq!(of("apps/v1\nkind: Deployment", other), None);
    }
}
