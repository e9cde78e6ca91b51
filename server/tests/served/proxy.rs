//! A TCP proxy that can be told to swallow what its present connections send: a path that has died without a word.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A running proxy.
pub struct Proxy {
    address: SocketAddr,
    /// Connections made before this count are swallowed.
    swallowed: Arc<AtomicU32>,
    made: Arc<AtomicU32>,
}

impl Proxy {
    pub fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (swallowed, made) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let (swallowed_too, made_too) = (swallowed.clone(), made.clone());
        // The threads end with the test's process; they hold nothing.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { continue };
                let number = made_too.fetch_add(1, Ordering::SeqCst);
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                    let swallowed = swallowed_too.clone();
                    std::thread::spawn(move || pass(from.unwrap(), to.unwrap(), number, &swallowed));
                }
            }
        });
        Proxy { address, swallowed, made }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn swallow_open_connections(&self) {
        self.swallowed.store(self.made.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, number: u32, swallowed: &AtomicU32) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if number >= swallowed.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
}
