//! The Unix socket over which shared memory is handed out, as a file: made at the start, removed at the end.
//!
//! Servers that were killed leave theirs behind. In the folder that servers share by default, each start removes what nobody listens
//! on any more, under a lock, so that a socket that's just being made isn't taken for one of these. What always holds:
//! a file that is no socket, and a socket that is another server's, stay.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Taken while sockets of a folder are made or removed.
const LOCK_NAME: &str = "lock";

/// A socket of this server's.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Tells it from another server's that has taken its place.
    made: Made,
}

/// What no two files of one path share: an inode may come again, but not with the time of its making.
#[derive(Debug, PartialEq, Eq)]
struct Made {
    inode: u64,
    changed: (i64, i64),
}

impl Made {
    fn of(path: &Path) -> io::Result<Made> {
        let file = fs::symlink_metadata(path)?;
        Ok(Made { inode: file.ino(), changed: (file.ctime(), file.ctime_nsec()) })
    }
}

impl SocketFile {
    /// Listens at `path`, in place of a socket that nobody listens on. Doesn't block but for a server that starts in the same
    /// moment.
    ///
    /// # Errors
    /// What the system says; something else that is there.
    pub fn listen_at(path: &Path) -> io::Result<(SocketFile, OwnedFd)> {
        remove_if_left_behind(path)?;
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok((SocketFile { path: path.to_owned(), made: Made::of(path)? }, listener.into()))
    }

    /// Listens at `name` in the folder that servers share, and clears it of what others left behind.
    ///
    /// # Errors
    /// As for [`SocketFile::listen_at`].
    pub fn listen_in(folder: &Path, name: &str) -> io::Result<(SocketFile, OwnedFd)> {
        let lock = File::create(folder.join(LOCK_NAME))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        for entry in fs::read_dir(folder)?.flatten() {
            // Of no matter for this server; the next one tries again.
            let _ = remove_if_left_behind(&entry.path());
        }
        SocketFile::listen_at(&folder.join(name))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, unless another server has taken its place.
    pub fn remove(&self) {
        if Made::of(&self.path).is_ok_and(|made| made == self.made) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nobody listens on: a server that was killed has left it. Another kind of file is somebody's, and stays.
fn remove_if_left_behind(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && !is_bound_here(path) && UnixStream::connect(path).is_err_and(is_refused) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Whether a process of this network namespace is known to have the socket open: asking it would cost it a connection. One of
/// another container isn't seen here.
fn is_bound_here(path: &Path) -> bool {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    path.to_str().is_some_and(|path| sockets.lines().any(|line| line.ends_with(&format!(" {path}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("lanner-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_was_left_behind_goes_and_what_is_in_use_stays() {
        let folder = folder("sockets");
        let (live, listener) = SocketFile::listen_in(&folder, "live").unwrap();
        drop(UnixListener::bind(folder.join("dead")).unwrap());
        fs::write(folder.join("file"), "somebody's").unwrap();
        let (other, _listener) = SocketFile::listen_in(&folder, "other").unwrap();
        let is_there = |name: &str| folder.join(name).exists();
        assert!(is_there("live") && is_there("file") && is_there("other") && !is_there("dead"));
        assert!(SocketFile::listen_in(&folder, "live").is_err(), "in use");
        assert!(SocketFile::listen_in(&folder, "file").is_err(), "no socket");
        drop(listener);
        let (successor, _listener) = SocketFile::listen_in(&folder, "live").unwrap();
        live.remove();
        assert!(is_there("live"), "its successor's");
        successor.remove();
        other.remove();
        assert!(!is_there("live") && !is_there("other"));
        fs::remove_dir_all(folder).unwrap();
    }
}
