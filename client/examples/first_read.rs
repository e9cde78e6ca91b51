//! Stores two tables and reads rows of both again and again, without asking the server for them.

use lanner_client::{Client, Error, Freshness, Range};

const ROW: u64 = 264;

/// The rows that the last token reads.
pub fn run(url: &str) -> Result<Vec<u8>, Error> {
    let client = Client::connect(url)?;
    client.upsert(b"table:0", &[1; 100 * ROW as usize])?;
    client.upsert(b"table:1", &[2; 100 * ROW as usize])?;

    let mut snapshot = client.prepare_snapshot(&["table:0", "table:1"])?;
    let mut rows = vec![0; 2 * ROW as usize];
    for token in 0..100 {
        let ranges = [
            Range { key: 0, source_offset: token * ROW, length: ROW, destination_offset: 0 },
            Range { key: 1, source_offset: (99 - token) * ROW, length: ROW, destination_offset: ROW },
        ];
        client.read_ranges_refreshing(&mut snapshot, &ranges, &mut rows, Freshness::Lease)?;
    }
    Ok(rows)
}

#[allow(dead_code, reason = "a test calls `run` of this file with a server of its own")]
fn main() -> Result<(), Error> {
    let url = std::env::var("LANNER_URL").unwrap_or_else(|_| "lanner://127.0.0.1:7411".to_owned());
    println!("read {} bytes", run(&url)?.len());
    Ok(())
}
