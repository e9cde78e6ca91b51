//! What a user of the tools is told when RDMA was tried and has failed: with `transport=auto` nothing else says it, for all goes on over TCP.

use lanner_client::{Client, RdmaFailures};

/// Says on standard error where RDMA has failed, how often and why the last time.
pub fn warn(client: &Client) {
    client.rdma_failures().iter().for_each(|failures| eprintln!("warning: {}", text(failures)));
}

fn text(RdmaFailures { server, failures, reason }: &RdmaFailures) -> String {
    let times = if *failures == 1 { String::new() } else { format!(" {failures} times") };
    format!("RDMA to {server} has failed{times}, and calls go over TCP meanwhile: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_names_the_server_and_the_reason() {
        let failed = |failures| RdmaFailures { server: "a:1".into(), failures, reason: "no answer".into() };
        let once = "RDMA to a:1 has failed, and calls go over TCP meanwhile: no answer";
        assert_eq!(text(&failed(1)), once);
        assert_eq!(text(&failed(3)), once.replace("failed", "failed 3 times"));
    }
}
