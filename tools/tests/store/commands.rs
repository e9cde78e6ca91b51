//! get, put, upsert, exists, rm, stat, ls.

use crate::support::{TestServer, folder, json, run_lanner, text};

/// Shows a value's way in and out by each pair of doors, with bytes that a text channel would spoil, over both transports.
#[test]
fn values_come_back_byte_for_byte() {
    let server = TestServer::start();
    let folder = folder("values");
    let (source, target) = (folder.join("source"), folder.join("target"));
    let binary: Vec<u8> = (0..100_000_u32).map(|number| (number * 7 % 256) as u8).collect();
    std::fs::write(&source, &binary).expect("written");
    let (source, target) = (source.to_str().expect("text"), target.to_str().expect("text"));
    for (index, value) in [&b""[..], b"\n", &binary].into_iter().enumerate() {
        for transport in ["tcp", "shm"] {
            let (key, url) = (format!("{transport} {index}"), server.url(&format!("transport={transport}")));
            let put = run_lanner(&url, &["put", &key], value);
            assert_eq!(put.status.code(), Some(0), "{put:?}");
            let got = run_lanner(&url, &["get", &key], b"");
            assert!(got.status.success() && got.stdout == value && got.stderr.is_empty(), "{key}");
        }
    }
    server.check(&["put", "from a file", source], 0);
    server.check(&["get", "from a file", "-o", target], 0);
    assert!(std::fs::read(target).expect("written") == binary);
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Shows that a missing key is no empty value: status 1, one line on standard error, and no file.
#[test]
fn a_missing_key_is_no_empty_value() {
    let server = TestServer::start();
    let folder = folder("missing");
    let target = folder.join("target");
    let output = server.run(&["get", "nothing", "-o", target.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty() && text(&output.stderr).lines().count() == 1, "{output:?}");
    assert!(!target.exists());
    server.run_with_input(&["put", "empty"], b"");
    assert_eq!(server.check(&["get", "empty"], 0), b"");
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Shows what put and upsert do with a key that is taken, and that keys of any bytes can be given.
#[test]
fn put_refuses_what_upsert_replaces() {
    let server = TestServer::start();
    assert_eq!(server.run_with_input(&["put", "k"], b"old").status.code(), Some(0));
    let refused = server.run_with_input(&["put", "k"], b"new");
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("upsert"), "{refused:?}");
    assert_eq!(server.check(&["get", "k"], 0), b"old");
    assert_eq!(server.run_with_input(&["upsert", "k"], b"new").status.code(), Some(0));
    assert_eq!(server.check(&["get", "--hex", "6b"], 0), b"new");
    assert_eq!(
        server.run_with_input(&["put", "--hex", "00ff", "--json"], b"v").stdout,
        b"{\"key_hex\":\"00ff\",\"value_bytes\":1}\n"
    );
    assert_eq!(json(&server.check(&["get", "--hex", "00ff", "--json"], 0))["value"], "v");
}

/// Shows the answers of exists and rm for keys that are there and keys that aren't, and their status.
#[test]
fn exists_and_rm_answer_for_each_key() {
    let server = TestServer::start();
    for key in ["a", "b"] {
        server.run_with_input(&["put", key], key.as_bytes());
    }
    assert_eq!(text(&server.check(&["exists", "a", "x", "b"], 1)), "yes     a\nno      x\nyes     b\n");
    server.check(&["exists", "a", "a"], 0);
    let removed = json(&server.check(&["--json", "rm", "a", "x"], 1));
    assert_eq!(
        removed,
        serde_json::json!([{ "key": "a", "removed": true }, { "key": "x", "removed": false }])
    );
    server.check(&["rm", "b"], 0);
    server.check(&["exists", "a"], 1);
}

/// Shows that ls finds exactly the keys with a prefix, in order and on all shards, and that its output can be cut short without complaint.
#[test]
fn ls_finds_the_keys_with_a_prefix() {
    let server = TestServer::start();
    for number in 0..30 {
        server.run_with_input(&["put", &format!("some/{number}")], &vec![7; number]);
    }
    server.run_with_input(&["put", "other"], b"x");
    let listed = |arguments: &[&str]| {
        text(&server.check(arguments, 0)).lines().map(str::to_owned).collect::<Vec<String>>()
    };
    let mut wanted: Vec<String> = (0..30).map(|number| format!("some/{number}")).collect();
    wanted.sort();
    assert_eq!(listed(&["ls", "some/"]), wanted);
    assert_eq!(listed(&["ls"]).len(), 31);
    assert_eq!(listed(&["ls", "nothing"]).len(), 0);
    assert_eq!(listed(&["ls", "--limit", "5"]).len(), 5);
    assert_eq!(listed(&["ls", "-l", "some/17"]), ["            17  some/17"]);
    assert_eq!(
        json(&server.check(&["--json", "ls", "other"], 0)),
        serde_json::json!({ "key": "other", "value_bytes": 1 })
    );
    let script =
        format!("{} ls | head -n 1 >/dev/null; echo ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_lanner"));
    let output =
        std::process::Command::new("bash").args(["-c", &script]).env("LANNER_URL", server.url("")).output();
    let output = output.expect("bash");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("0\n".to_owned(), String::new()));
}

/// Shows that get takes the longest key that the one asked for begins with, if it's told to, and says which; and that without one the
/// answer is no.
#[test]
fn get_falls_back_to_a_prefix() {
    let server = TestServer::start();
    server.run_with_input(&["put", "prompt"], b"short");
    server.run_with_input(&["put", "prompt/of"], b"longer");
    assert_eq!(server.run(&["get", "prompt/of/today"]).status.code(), Some(1));
    let got = server.run(&["get", "--prefix-fallback", "prompt/of/today"]);
    assert_eq!(
        (got.stdout.as_slice(), text(&got.stderr)),
        (b"longer".as_slice(), "found prompt/of\n".to_owned())
    );
    let got = server.run(&["get", "--prefix-fallback", "prompt"]);
    assert_eq!((got.stdout.as_slice(), text(&got.stderr)), (b"short".as_slice(), String::new()));
    assert_eq!(json(&server.check(&["--json", "get", "--prefix-fallback", "prompts"], 0))["key"], "prompt");
    assert_eq!(server.run(&["get", "--prefix-fallback", "other"]).status.code(), Some(1));
}

/// Shows what stat says of an object, of a missing one, and of the shards.
#[test]
fn stat_says_how_things_stand() {
    let server = TestServer::start();
    server.run_with_input(&["put", "k"], &[1; 1000]);
    let object = json(&server.check(&["--json", "stat", "k"], 0));
    assert_eq!(
        (&object["key"], &object["value_bytes"], &object["transport"]),
        (&"k".into(), &1000.into(), &"shm".into())
    );
    assert!(text(&server.check(&["stat", "k"], 0)).contains("1000 bytes"));
    server.check(&["stat", "x"], 1);
    let shards = json(&server.check(&["--json", "stat"], 0));
    let objects: u64 = shards
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|shard| shard["stats"]["objects"].as_u64())
        .sum();
    assert_eq!((shards.as_array().map(Vec::len), objects), (Some(2), 1));
    assert_eq!(text(&server.check(&["stat"], 0)).lines().count(), 3);
}

/// Shows the statuses for wrong use and for a server that isn't there, in one line each and in time.
#[test]
fn wrong_use_and_unreachable_servers_have_their_status() {
    let server = TestServer::start();
    for arguments in [
        &["put", "k", "/no/such/file"][..],
        &["get", "--hex", "abc"],
        &["get", ""],
        &["put", "k", "--pin", "hard"],
        &["--url", "http://x", "get", "k"],
    ] {
        let output = server.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{arguments:?}: {output:?}");
    }
    // Nobody listens on port 1.
    for arguments in [&["get", "k"][..], &["ls"], &["stat"], &["exists", "k"]] {
        let output = run_lanner("lanner://127.0.0.1:1", arguments, b"");
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{arguments:?}: {output:?}");
    }
}
