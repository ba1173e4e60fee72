//! The users who can write a file. Plugins and compiled programs are code that this process runs, so it neither loads
//! them from a folder or a file that another user can write, nor lets others write what it stores.
//!
//! Entry points: [`check`], [`make_folder`]. root is trusted, because root can write every file.

use std::fmt;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// The mode of a new folder: only this user may enter it.
const FOLDER_MODE: u32 = 0o700;
/// The bits of a mode that let the group and all users write.
const WRITE_BITS: u32 = 0o022;
/// The number of the user root.
const ROOT: u32 = 0;

/// Code that this process loads from files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Compiled programs.
    Programs,
    /// Plugins that were fetched, and their libraries.
    Plugins,
}

/// The error of a file or folder that another user can write.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum UntrustedError {
    #[error(
        "{} belongs to user {owner}; {code} are code, so only those of user {user}, who runs this server, and of root \
         are used; {}", .path.display(), .code.of_this_user()
    )]
    Owner { code: Code, path: PathBuf, owner: u32, user: u32 },
    #[error(
        "{path} has mode {mode:04o}: other users can write it; {code} are code, so they are not used; run \
         `chmod go-w {path}`, or {}", .code.elsewhere(), path = .path.display()
    )]
    Mode { code: Code, path: PathBuf, mode: u32 },
}

impl Code {
    /// The remedy if the place belongs to another user.
    fn of_this_user(self) -> &'static str {
        match self {
            Self::Programs => "pass a folder of this user with --program-cache, or `none`",
            Self::Plugins => "remove it and fetch the plugin again, or pass the plugin's path with --plugin-path",
        }
    }

    /// The remedy if the place stays as it is.
    fn elsewhere(self) -> &'static str {
        match self {
            Self::Programs => "pass another folder with --program-cache",
            Self::Plugins => "pass the plugin's path with --plugin-path",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Programs => "compiled programs",
            Self::Plugins => "plugins",
        })
    }
}

/// Checks that only this user and root can write the file or folder at `path`, which `metadata` describes.
///
/// # Errors
/// When it belongs to another user, or its mode lets its group or all users write.
pub fn check(code: Code, path: &Path, metadata: &Metadata) -> io::Result<()> {
    check_owner(code, path, (metadata.uid(), metadata.mode()), geteuid().as_raw()).map_err(io::Error::other)
}

/// Checks the folder at `path` as [`check`] does. If it is missing, makes it and the folders above it, for this user
/// only.
///
/// # Errors
/// When it cannot be made, or another user can write it.
pub fn make_folder(code: Code, path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
    check(code, path, &fs::metadata(path)?)
}

fn check_owner(code: Code, path: &Path, (owner, mode): (u32, u32), user: u32) -> Result<(), UntrustedError> {
    let path = path.to_path_buf();
    if ![user, ROOT].contains(&owner) {
        return Err(UntrustedError::Owner { code, path, owner, user });
    }
    if mode & WRITE_BITS != 0 {
        return Err(UntrustedError::Mode { code, path, mode: mode & 0o7777 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_files_of_this_user_and_root_that_nobody_else_can_write_are_trusted() {
        let code = Code::Programs;
        let check = |owner, mode| check_owner(code, Path::new("/programs"), (owner, mode), 1000);
        for mode in [0o40700, 0o40755, 0o42750, 0o100600, 0o100444] {
            assert_eq!([check(1000, mode), check(0, mode)], [Ok(()), Ok(())], "{mode:o}");
            let foreign = UntrustedError::Owner { code, path: "/programs".into(), owner: 1001, user: 1000 };
            assert_eq!(check(1001, mode), Err(foreign), "{mode:o}");
        }
        for mode in [0o40770, 0o40702, 0o41777, 0o42775, 0o100620, 0o100602] {
            let open = UntrustedError::Mode { code, path: "/programs".into(), mode: mode & 0o7777 };
            assert_eq!([check(1000, mode).as_ref(), check(0, mode).as_ref()], [Err(&open), Err(&open)], "{mode:o}");
        }
        insta::assert_snapshot!(
            check(1001, 0o40700).unwrap_err(),
            @"/programs belongs to user 1001; compiled programs are code, so only those of user 1000, who runs this server, and of root are used; pass a folder of this user with --program-cache, or `none`"
        );
        insta::assert_snapshot!(
            check_owner(Code::Plugins, Path::new("/plugins"), (1001, 0o40700), 1000).unwrap_err(),
            @"/plugins belongs to user 1001; plugins are code, so only those of user 1000, who runs this server, and of root are used; remove it and fetch the plugin again, or pass the plugin's path with --plugin-path"
        );
        insta::assert_snapshot!(
            check(1000, 0o42775).unwrap_err(),
            @"/programs has mode 2775: other users can write it; compiled programs are code, so they are not used; run `chmod go-w /programs`, or pass another folder with --program-cache"
        );
    }

    #[test]
    fn new_folders_are_for_this_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache/programs");
        for _ in 0..2 {
            make_folder(Code::Programs, &path).unwrap();
        }
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!([mode(&path), mode(&folder.path().join("cache"))], [0o700, 0o700]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).unwrap();
        let error = make_folder(Code::Programs, &path).unwrap_err().to_string();
        assert!(error.contains("has mode 0770"), "{error}");
        assert_eq!(mode(&path), 0o770, "a folder that exists is left as it is");
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        if std::os::unix::fs::chown(folder.path(), Some(54_321), None).is_err() {
            return test_support::skipped("only root can give a folder to another user");
        }
        let error = make_folder(Code::Programs, folder.path()).unwrap_err().to_string();
        assert!(error.contains("belongs to user 54321"), "{error}");
    }
}
