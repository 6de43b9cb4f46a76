//! Custom resources of manifests, looked up with the API server.

use std::time::Duration;

use serde_json::Value;

use super::{Apps, problem_error};
use crate::{
    core::apps::{CREATE_FIRST, Customs, Kind, Owner, discovered, not_built_in},
    error::{Error, Result, Retry},
    kube::{Client, Error as ApiError},
};

/// Time for the API server to say what is in a group; an aggregated one is asked by it.
const WITHIN: Duration = Duration::from_secs(10);
/// The largest answer about one version of a group. That of the core of Kubernetes takes 10 KB.
const ANSWER_BYTES_MAX: usize = 256 << 10;

impl Apps {
    /// Looks up the custom resources among objects, as far as their groups may be asked for. The
    /// others are refused when they are judged.
    ///
    /// # Errors
    /// Root does not allow a group, or the cluster does not have a kind.
    pub(super) async fn customs(&self, objects: &[Value], owner: Owner) -> Result<Customs> {
        let mut customs = Customs::new();
        let mut known = (String::new(), Value::Null);
        for (api_version, kind) in not_built_in(objects) {
            // It may be refused for what it is before anything is asked about it.
            let Some(any) = possible(&api_version, &kind) else {
                continue;
            };
            self.account(owner).may_have(&any)?;
            if known.0 != api_version {
                known = (
                    api_version.clone(),
                    resources(&self.client, &api_version).await?,
                );
            }
            let found = discovered(&known.1, &api_version, &kind).map_err(problem_error)?;
            customs.insert((api_version, kind), found);
        }
        Ok(customs)
    }
}

/// The custom resource that a kind may be, before its plural is known; `None`: it is none.
pub(super) fn possible(api_version: &str, kind: &str) -> Option<Kind> {
    let (group, _) = api_version.split_once('/')?;
    Kind::custom(api_version, &format!("{kind}.{group}").to_lowercase())
}

/// The answer of the API server about a version of a group.
///
/// # Errors
/// There is none, or it is larger than such an answer is.
pub async fn resources(client: &Client, api_version: &str) -> Result<Value> {
    let cannot = |why: String| {
        let what = "nothing was deployed: the API server does not say what is in";
        Error::new(format!("{what} {api_version}")).why(why)
    };
    let odd = |why| cannot(why).fix("kubectl api-resources shows it; ask who makes that API");
    let bytes = match client.read(&format!("/apis/{api_version}"), WITHIN).await {
        Ok(bytes) if bytes.len() > ANSWER_BYTES_MAX => {
            return Err(odd(format!("its answer takes {} bytes", bytes.len())));
        }
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => {
            let what = format!("nothing was deployed: the cluster has no {api_version}");
            return Err(Error::new(what)
                .fix(format!(
                    "{CREATE_FIRST}; kubectl api-versions shows what there is"
                ))
                .retry(Retry::Later));
        }
        Err(error @ ApiError::TooLarge { .. }) => return Err(odd(error.to_string())),
        Err(error) => return Err(cannot(error.to_string()).retry(Retry::Soon)),
    };
    serde_json::from_slice(&bytes).map_err(|error| odd(error.to_string()))
}
