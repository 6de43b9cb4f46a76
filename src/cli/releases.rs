//! Releases that come over the network: the key that signs their lists, the way there, and
//! progress.

use std::sync::{Arc, OnceLock};

use super::{
    args::Args,
    output::{Output, size},
    sources,
};
use crate::{
    config::{self, Update},
    core::update::{
        signature::PublicKey,
        signed::{BYTES_MAX, KeyOrigin, Trust},
    },
    daemon::oneshot,
    error::{Error, Result},
    host::clock,
    outside::{
        download::{self, Address, Progress},
        transport::Transport,
    },
};

/// Key of the releases, put in when they are built. Without it only a key of the settings is
/// believed.
pub(super) fn built_in_key() -> Option<&'static str> {
    Some(env!("BUILD_RELEASE_KEY")).filter(|key| !key.is_empty())
}

/// Returns whether any list would be believed.
pub(super) fn has_key(settings: &Update) -> bool {
    built_in_key().is_some() || settings.key.is_some()
}

/// The trust that lists are read with; `sequence` and `keys` are what this machine has seen.
pub(super) fn trust(settings: &Update, sequence: u64, keys: u32) -> Result<Trust> {
    let (text, origin) = match (&settings.key, built_in_key()) {
        (Some(key), _) => (key.as_str(), KeyOrigin::Settings),
        (None, Some(key)) => (key, KeyOrigin::BuiltIn),
        (None, None) => {
            return Err(Error::new("cannot verify releases")
                .why("this program was built without their key")
                .fix("set update.key in /etc/pipeops-agent/config.toml to the public key of minisign that signs yours; or install a release, whose programs have their key"));
        }
    };
    // After changes of the key: how many led to it, then the key.
    let (number, key) = text.trim().split_once(' ').unwrap_or(("0", text));
    let read = number.parse().ok().zip(PublicKey::parse(key));
    let (number, key) = read.ok_or_else(|| {
        Error::new("update.key is not a minisign public key")
            .fix("it is the last line of minisign.pub")
    })?;
    Ok(Trust {
        key,
        number,
        origin,
        sequence,
        keys,
    })
}

/// Transport to servers that a setting names, also on a machine that is not set up for a control
/// plane yet.
pub(super) fn transport(args: &Args) -> Result<Transport> {
    let mut sources = sources(args);
    sources.assignments.push("pipeops.api_url=off".to_owned());
    match config::load(&sources).settings() {
        Ok(settings) => oneshot::transport(&settings),
        Err(mut problems) => Err(problems.swap_remove(0)),
    }
}

/// A list and its signature, which is beside it.
pub(super) fn list(transport: &Transport, from: &Address) -> Result<(Vec<u8>, Vec<u8>)> {
    let beside = Address {
        url: format!("{}.minisig", from.url),
        ..*from
    };
    smol::block_on(async {
        let text = download::text(transport, from, BYTES_MAX).await?;
        let signature = download::text(transport, &beside, BYTES_MAX).await?;
        Ok((text, signature))
    })
}

/// Lines of progress with bytes and rate, on standard error: standard output is for the result.
pub(super) fn progress() -> Progress {
    // What an earlier run left says nothing about the network.
    let first = OnceLock::new();
    Arc::new(move |bytes, all| {
        let now = clock::now().mono;
        let (bytes_then, then) = *first.get_or_init(|| (bytes, now));
        let millis = u64::try_from(now.since(then).as_millis()).unwrap_or(u64::MAX);
        let fetched = bytes.saturating_sub(bytes_then).saturating_mul(1000);
        let rate = fetched.checked_div(millis).filter(|rate| *rate > 0);
        let rate = rate.map_or_else(String::new, |rate| format!(", {}/s", size(rate)));
        Output::of_process().note(&format!("{} of {}{rate}", size(bytes), size(all)));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::update::tests::Signer;

    #[test]
    fn a_program_without_a_key_believes_no_list_until_one_is_set() {
        if built_in_key().is_some() {
            println!("impossible here: this program was built with a key");
            return;
        }
        let refusal = trust(&Update::default(), 0, 0).unwrap_err().to_string();
        assert!(refusal.contains("built without their key"), "{refusal}");
        assert!(refusal.contains("set update.key"), "{refusal}");
        let set = |key: &str| Update {
            key: Some(key.to_owned()),
            ..Update::default()
        };
        let key = Signer::new(1).public();
        let trusted = trust(&set(&key), 7, 0).unwrap();
        assert_eq!(
            trusted,
            Trust {
                sequence: 7,
                origin: KeyOrigin::Settings,
                ..Signer::new(1).trust()
            }
        );
        assert_eq!(trust(&set(&format!("2 {key}")), 0, 0).unwrap().number, 2);
        trust(&set("RWnonsense"), 0, 0).unwrap_err();
    }
}
