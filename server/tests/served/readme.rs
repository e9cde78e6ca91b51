//! What the README shows works as shown.

use crate::support::TestServer;

#[path = "../../../client/examples/first_read.rs"]
mod first_read;

#[test]
fn the_example_runs_and_is_the_one_in_the_readme() {
    let server = TestServer::start(&[]);
    for transport in ["tcp", "shm"] {
        let rows = first_read::run(&server.url(&format!("transport={transport}"))).unwrap();
        assert_eq!(rows, [[1; 264], [2; 264]].concat());
    }
    let readme = include_str!("../../../README.md");
    let example = include_str!("../../../client/examples/first_read.rs");
    let shown = example.split("use lanner_client").nth(1).unwrap().split("\n#[allow").next().unwrap();
    assert!(readme.contains(shown.trim_end()), "README.md and client/examples/first_read.rs differ");
}
