//! Binding a port that a server which was just killed may still have for a moment.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

/// The kernel takes so long, at most, to close the listener of a process that was killed with an io_uring at work; a tenth of a second was seen.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// A listener on `address`. Waits for half a second where somebody else has it, so that a restart right after a crash comes up.
///
/// # Errors
/// What the system says.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    for _ in 1..ATTEMPTS {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
    }
    TcpListener::bind(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a port which becomes free soon is had, and that one which doesn't is refused.
    #[test]
    fn a_port_that_is_about_to_be_free_is_waited_for() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        assert_eq!(bind(address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let waiting = std::thread::spawn(move || bind(address));
        std::thread::sleep(2 * PAUSE);
        drop(other);
        assert_eq!(waiting.join().unwrap().unwrap().local_addr().unwrap(), address);
    }
}
