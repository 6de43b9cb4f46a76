//! Name of the node of this machine, as k3s takes it.

use super::super::Keeper;
use crate::{
    core::k3s,
    error::{Error, Result},
    host::facts,
    wire::keeper::Managed,
};

impl Keeper {
    pub(super) fn node_name(&self, wanted: Option<&str>) -> Result<String> {
        let set = || self.system.k3s_value("node-name", "K3S_NODE_NAME");
        // As k3s does.
        let set = || set().map(|name| name.to_lowercase());
        let host = || facts::hostname(self.system.root()).map(|name| name.to_lowercase());
        let name = wanted.map(str::to_owned).or_else(set).or_else(host);
        let name = name.unwrap_or_default();
        if k3s::is_node_name(&name) {
            return self.with_id(name);
        }
        Err(Error::new(format!("{name:?} cannot be the name of a node"))
            .why("it must be lowercase letters, digits, dots and dashes, 63 at most")
            .fix("choose one: --node-name NAME"))
    }

    /// The name that k3s takes for its node now, where it is another one than that of the note: the
    /// machine was renamed, or its settings were changed.
    pub(super) fn renamed(&self, note: &Managed) -> Option<String> {
        // Of settings that cannot be read nobody knows what they name.
        self.system.check_settings().ok()?;
        let now = self.node_name(None).ok()?;
        (now != note.node).then_some(now)
    }

    /// The name that the node gets of this one: with `with-node-id` k3s adds what it makes up once.
    pub(super) fn with_id(&self, name: String) -> Result<String> {
        let init = self.system.init().ok();
        let service = init.and_then(|init| self.system.found_service(init));
        let has_flag = service.is_some_and(|(_, service)| service.has(NODE_ID));
        if !has_flag && !k3s::is_on(&self.system.k3s_settings(), NODE_ID) {
            return Ok(name);
        }
        match self.system.line("/etc/rancher/node/id") {
            Some(id) => Ok(format!("{name}-{id}")),
            None => Err(Error::new("the name of the node is not known")
                .why(format!("with {NODE_ID} k3s appends a random id at its first start"))
                .fix(format!("remove {NODE_ID} from /etc/rancher/k3s/config.yaml, and choose a name: --node-name NAME"))),
        }
    }
}

/// Setting by which k3s adds to the name of a node.
pub(super) const NODE_ID: &str = "with-node-id";
