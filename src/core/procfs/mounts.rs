//! Mounts: `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::borrow::Cow;

/// A mounted file system, as the kernel shows it to this program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mount<'a> {
    /// Major and minor number: what is mounted twice has the same one twice.
    pub number: &'a str,
    /// Mount point.
    pub point: Cow<'a, str>,
    /// File system: `ext4`.
    pub kind: &'a str,
    /// Device: `/dev/mmcblk0p2`. What it has escaped is still escaped: see [`unescaped`].
    pub device: &'a str,
    /// Options of the mount, with commas: the service manager shows many file systems read-only to
    /// one program alone.
    pub mount_options: &'a str,
    /// Options of the file system, with commas.
    pub super_options: &'a str,
}

impl Mount<'_> {
    /// Returns whether one of the options, of either kind, is this.
    pub fn has(&self, option: &str) -> bool {
        [self.mount_options, self.super_options]
            .iter()
            .flat_map(|options| options.split(','))
            .any(|has| has == option)
    }

    /// Returns whether the path is on this mount, or would be without mounts further in.
    pub fn holds(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.point.as_ref());
        self.point == "/" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// The mounts, in the order in which they were made.
pub fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(mount)
}

/// The mount that holds a path.
pub fn mount_of<'a>(mountinfo: &'a str, path: &str) -> Option<Mount<'a>> {
    // The last of equal ones covers those before it.
    mounts(mountinfo)
        .filter(|mount| mount.holds(path))
        .max_by_key(|mount| mount.point.len())
}

/// `36 35 98:0 /root /path rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: the fields
/// before the dash vary in number.
fn mount(line: &str) -> Option<Mount<'_>> {
    let (of_mount, of_file_system) = line.split_once(" - ")?;
    let mut of_mount = of_mount.split(' ').skip(2);
    let (number, _root, point, mount_options) = (
        of_mount.next()?,
        of_mount.next()?,
        of_mount.next()?,
        of_mount.next()?,
    );
    let mut of_file_system = of_file_system.split(' ');
    let (kind, device, super_options) = (
        of_file_system.next()?,
        of_file_system.next()?,
        of_file_system.next()?,
    );
    let point = Some(unescaped(point)).filter(|point| point.starts_with('/'))?;
    Some(Mount {
        number,
        point,
        kind,
        device,
        mount_options,
        super_options,
    })
}

/// Spaces, tabs, line breaks and backslashes are three octal digits behind a backslash.
pub fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split('\\');
    plain.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (code, part.get(3..)) {
            (Some(code), Some(rest)) if code.is_ascii() => {
                plain.push(char::from(code));
                plain.push_str(rest);
            }
            _ => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PI: &str = "\
        21 1 179:2 / / rw,noatime - ext4 /dev/mmcblk0p2 rw\n\
        22 21 0:5 / /proc rw - proc proc rw\n\
        23 21 179:1 / /boot/firmware rw,relatime shared:1 - vfat /dev/mmcblk0p1 rw,fmask=0022\n\
        24 21 8:1 / /mnt/my\\040ssd rw - ext4 /dev/sda1 ro\n";

    #[test]
    fn a_path_is_on_the_longest_mount_that_holds_it() {
        let at = |path| mount_of(PI, path).map(|mount| (mount.point.into_owned(), mount.kind));
        let found = |point: &str, kind| Some((point.to_owned(), kind));
        assert_eq!(
            at("/boot/firmware/cmdline.txt"),
            found("/boot/firmware", "vfat")
        );
        assert_eq!(at("/boot/firmware2/x"), found("/", "ext4"));
        assert_eq!(at("/boot"), found("/", "ext4"));
        assert!(mount_of(PI, "/mnt/my ssd/a").unwrap().has("ro"));
        assert!(!mount_of(PI, "/").unwrap().has("ro"));
        assert_eq!(mount_of("", "/x"), None);
    }

    #[test]
    fn a_broken_line_costs_itself_alone() {
        let text = format!("23 21 8:1 / /cut\n{PI}no line at all\n");
        assert_eq!(mounts(&text).count(), 4);
    }

    #[test]
    fn escapes_are_read_and_broken_ones_stay() {
        for (text, plain) in [
            ("/a\\040b\\134c", "/a b\\c"),
            ("/a\\04", "/a\\04"),
            ("/a\\999é", "/a\\999é"),
            ("\\", "\\"),
            ("/\\377x", "/\\377x"),
        ] {
            assert_eq!(unescaped(text), plain);
        }
    }
}
