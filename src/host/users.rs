//! Users and groups of this machine.

use nix::unistd::{Group, User};

/// Returns whether a process of this user and group is one of `names`: a user, or with `@` before
/// it a group to which the user belongs. Reads the files of the system: call it in the blocking
/// pool.
pub fn is_one_of(names: &[String], (uid, gid): (u32, u32)) -> bool {
    let user = User::from_uid(uid.into()).ok().flatten();
    let is_meant = |name: &String| match name.strip_prefix('@') {
        None => user.as_ref().is_some_and(|user| user.name == *name),
        Some(name) => Group::from_name(name).ok().flatten().is_some_and(|group| {
            let is_member = |user: &User| user.gid == group.gid || group.mem.contains(&user.name);
            group.gid.as_raw() == gid || user.as_ref().is_some_and(is_member)
        }),
    };
    names.iter().any(is_meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_meant_by_name_or_by_group() {
        let is = |names: &str, ids| {
            let names: Vec<_> = names.split(' ').map(str::to_owned).collect();
            is_one_of(&names, ids)
        };
        assert!(is("nobody-else root", (0, 0)));
        assert!(is("@root", (0, 0)));
        // The group of the process counts too.
        assert!(is("@root", (65_531, 0)));
        assert!(!is("root @root", (65_531, 65_531)));
        assert!(!is("@absent-group absent-user", (0, 0)));
        assert!(!is_one_of(&[], (0, 0)));
    }
}
