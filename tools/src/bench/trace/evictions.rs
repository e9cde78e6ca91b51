//! What the servers evicted during a replay: the difference between what all shards say of themselves before and after.

use lanner_client::Client;
use serde::Serialize;
use serde_json::Value;

use crate::exit::Failure;

/// Names in a shard's statistics that count evicted objects, each for another reason.
const OBJECTS: [&str; 3] = ["evicted_ahead", "evicted_for_demand", "evicted_as_neighbour"];

/// Sums over all shards, whoever put the objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evictions {
    /// Number of objects.
    pub objects: u64,
    /// What they took, in bytes.
    pub bytes: u64,
}

impl Evictions {
    /// All since the servers started.
    ///
    /// # Errors
    /// What the servers say, and statistics that lack a number.
    pub fn so_far(client: &Client) -> Result<Evictions, Failure> {
        let mut sum = Evictions::default();
        for (server, text) in client.stats()? {
            let of_shard = of_shard(&text).ok_or_else(|| {
                Failure::Machine(format!(
                    "{server} doesn't say how much it evicted: it is of another version"
                ))
            })?;
            sum.objects += of_shard.objects;
            sum.bytes += of_shard.bytes;
        }
        Ok(sum)
    }

    /// Those since `earlier`; a server that was started anew has none.
    #[must_use]
    pub fn since(self, earlier: Evictions) -> Evictions {
        Evictions {
            objects: self.objects.saturating_sub(earlier.objects),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

fn of_shard(text: &str) -> Option<Evictions> {
    let stats: Value = serde_json::from_str(text).ok()?;
    let objects = OBJECTS.iter().map(|name| stats[name].as_u64()).sum::<Option<u64>>()?;
    Some(Evictions { objects, bytes: stats["evicted_bytes"].as_u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that all reasons count, and that a missing number is no zero.
    #[test]
    fn all_reasons_count() {
        let text =
            r#"{"evicted_ahead":1,"evicted_for_demand":20,"evicted_as_neighbour":300,"evicted_bytes":9}"#;
        assert_eq!(of_shard(text), Some(Evictions { objects: 321, bytes: 9 }));
        assert_eq!(of_shard(&text.replace("evicted_ahead", "x")), None);
        assert_eq!(of_shard(""), None);
    }
}
