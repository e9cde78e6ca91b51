//! top.

use crate::support::{TestServer, json, run_lanner, text};

/// Shows one look for people and one for scripts, and that the counts arrive there within a second of what was done.
#[test]
fn top_shows_what_the_shards_do() {
    let server = TestServer::start();
    for key in ["a", "b", "c"] {
        server.run_with_input(&["put", key], key.as_bytes());
    }
    let look = || json(&server.check(&["--json", "top", "--once", "--admin", server.admin()], 0));
    let puts = |look: &serde_json::Value| -> u64 {
        look["shards"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|shard| shard["stats"]["puts"].as_u64())
            .sum()
    };
    let counted = (0..20).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        puts(&look()) == 3
    });
    assert!(counted, "{:#}", look());
    let screen = text(&server.check(&["top", "--once", "--admin", server.admin()], 0));
    assert!(screen.contains("ready") && screen.lines().count() == 9, "{screen}");
    assert!(!screen.contains('\x1b'), "a pipe is no terminal: {screen}");
}

/// Shows that an endpoint that isn't there, or is none, is said in one line with status 3.
#[test]
fn an_endpoint_that_is_none_is_unreachable() {
    let server = TestServer::start();
    let data_port = server.url("").replace("lanner://", "").replace('?', "");
    for admin in ["127.0.0.1:1", &data_port] {
        let output = run_lanner("", &["top", "--once", "--admin", admin], b"");
        assert_eq!(output.status.code(), Some(3), "{admin}: {output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    }
}
