//! Programs that listen on ports. Only root can see those of other users.

use std::{fs, path::Path};

use litemap::LiteMap;

use crate::core::{facts::Fact, procfs::net::listeners};

/// A machine with more processes has its ports looked for among these.
const PROCESSES_MAX: usize = 4096;
/// Open files of one process that are looked at.
const FILES_MAX: usize = 1024;

/// Lines of `port process name`.
pub(super) fn holders(root: &Path) -> Fact {
    let mut ports = sockets(root);
    let mut lines = Vec::new();
    let processes = fs::read_dir(root.join("proc"))
        .into_iter()
        .flatten()
        .flatten();
    let processes = processes.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    for process in processes.take(PROCESSES_MAX) {
        if ports.is_empty() {
            break;
        }
        let files = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten();
        for file in files.take(FILES_MAX).flatten() {
            let Some(port) = fs::read_link(file.path())
                .ok()
                .and_then(|link| ports.remove(socket(link.to_str()?)?))
            else {
                continue;
            };
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let number = process.file_name();
            lines.push(format!("{port} {} {}", number.display(), name.trim()));
        }
    }
    Fact::Text(lines.join("\n"))
}

/// `socket:[12345]`
fn socket(link: &str) -> Option<&str> {
    link.strip_prefix("socket:[")?.strip_suffix(']')
}

/// Ports that are listened on, by the inode of the socket.
fn sockets(root: &Path) -> LiteMap<String, u16> {
    let mut ports = LiteMap::new();
    for table in ["proc/self/net/tcp", "proc/self/net/tcp6"] {
        let Fact::Text(text) = super::text(&root.join(table)) else {
            continue;
        };
        for socket in listeners(&text) {
            if let Some(inode) = socket.inode {
                ports.insert(inode.to_owned(), socket.port);
            }
        }
    }
    ports
}
