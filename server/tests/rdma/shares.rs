//! What connections share, and that none of them can use it up: room for messages in both directions.

use crate::by_hand;
use crate::failures::Trouble;
use crate::raw::{self, MESSAGE, RawClient};
use crate::support::TestServer;
use lanner_client::{Client, Clock, PutOptions};
use lanner_shared::wire::join_rdma::UNTAKEN_MESSAGES;
use std::time::Duration;

/// A client that fails within the time that the server gives those who take nothing.
fn impatient(server: &TestServer) -> Client {
    let client = Client::connect(&server.url("transport=rdma&timeout=8s")).unwrap();
    assert_eq!(client.transport_for(b"key").unwrap(), "rdma");
    client
}

/// Calls of all sizes get through in time.
fn is_served(client: &Client, name: &str) {
    for bytes in [100, 20_000, 300_000] {
        let value: Vec<u8> = (0..bytes).map(|at| (at * 7 + bytes) as u8).collect();
        let key = format!("{name} {bytes}");
        let began = Clock.now();
        client.put(key.as_bytes(), &value).unwrap();
        assert!(client.get(key.as_bytes()).unwrap() == value);
        let took = Clock.now().since(began);
        assert!(took < Duration::from_secs(6), "{name}: {bytes} bytes took {took:?}");
    }
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn clients_that_take_no_answers_leave_places_for_answers_to_others() {
    // Four of them had all 128 places of the shard, until they were given up after half a minute. Each asks for a value that takes more.
    let server = TestServer::start(&["--shm", "off"]);
    let client = impatient(&server);
    client.put_with(b"long", &vec![5; 1 << 20], PutOptions::default()).unwrap();
    let domain = raw::domain(&server);
    let mut deaf: Vec<RawClient> = (0..6).map(|_| RawClient::join(&server, &domain, 0)).collect();
    for client in &mut deaf {
        assert!(client.send(&by_hand::get(b"long")));
    }
    std::thread::sleep(Duration::from_millis(500));
    is_served(&client, "beside");
    is_served(&impatient(&server), "new");
    server.reports_when(|reports| reports[0].transport.rdma_connections == 8);
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_backlog_leaves_receives_to_others() {
    // Each of the clients has as much on the way as it may, behind answers that it doesn't take: together more than the shard has receives.
    let server = TestServer::start(&["--shm", "off"]);
    let client = impatient(&server);
    client.put_with(b"long", &vec![5; 1 << 20], PutOptions::default()).unwrap();
    let domain = raw::domain(&server);
    let mut stuck: Vec<RawClient> = (0..10).map(|_| RawClient::join(&server, &domain, 0)).collect();
    for (number, client) in stuck.iter_mut().enumerate() {
        // Two answers are more than wait at a time; what comes behind isn't served.
        let mut gets = by_hand::get(b"long");
        gets.extend(by_hand::get(b"long"));
        assert!(client.send(&gets));
        let mut message = by_hand::put(format!("never {number}").as_bytes(), 4 << 20);
        message.resize(MESSAGE, 1);
        for _ in 1..UNTAKEN_MESSAGES {
            assert!(client.send(&message));
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    is_served(&client, "beside");
    is_served(&impatient(&server), "new");
    server.reports_when(|reports| {
        reports[0].transport.rdma_connections == 12 && reports[0].transport.protocol_errors == 0
    });
    // One that sends on is told by the end of its connection; its memory is bounded.
    let mut message = vec![1; MESSAGE];
    message[0] = 2;
    let (began, worst) = (Clock.now(), &mut stuck[0]);
    while worst.send(&message) {
        assert!(Clock.now().since(began) < Duration::from_secs(8), "it may send without end");
    }
    server.reports_when(|reports| reports[0].transport.protocol_errors == 1);
    is_served(&client, "behind");
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn a_client_that_sends_without_a_pause_is_told_in_time_that_it_may_go_on() {
    // Long values in messages, one answer each: what the client may send comes with messages that say nothing else.
    let server = TestServer::start(&["--shm", "off"]);
    let client = impatient(&server);
    let value: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 8) as u8 ^ at as u8).collect();
    let items: Vec<(String, &[u8])> =
        (0..4).map(|number| (format!("item {number}"), &value[number..])).collect();
    let outcomes = client.put_batch(&items, PutOptions::default()).unwrap();
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    for (key, value) in &items {
        assert!(client.get(key.as_bytes()).unwrap() == *value);
    }
    // And many short ones, more than may be under way.
    let items: Vec<[(String, &[u8]); 1]> =
        (0..200).map(|number| [(format!("short {number}"), &value[..100])]).collect();
    let pending: Vec<_> =
        items.iter().map(|item| client.submit_put_batch(item, PutOptions::default()).unwrap()).collect();
    assert!(pending.into_iter().all(|pending| pending.wait().unwrap() == [Ok(())]));
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn clients_that_go_in_the_middle_of_messages_leave_no_room_behind_them_taken() {
    // A message whose last packet is lost has taken a receive, and its sender goes before it has sent that again. Were the receive lost with the queue
    // pair, nobody could send any more after a few hundred of them.
    let server = TestServer::start(&["--shm", "off", "--memory", "32MiB"]);
    let client = impatient(&server);
    let domain = raw::domain(&server);
    let losing = Trouble::begin(
        &[
            "tc qdisc add dev eth0 clsact",
            // Behind the headers of IP and UDP: "the last packet of a message".
            "tc filter add dev eth0 ingress protocol ip u32 match ip protocol 17 0xff match u8 2 0xff at 28 action drop",
        ],
        &["tc qdisc del dev eth0 clsact"],
    );
    for round in 0..300_u32 {
        let mut short_lived = RawClient::join(&server, &domain, 4);
        let mut message = by_hand::put(&round.to_le_bytes(), 1 << 20);
        message.resize(MESSAGE, 3);
        short_lived.send(&message);
        std::thread::sleep(Duration::from_millis(2));
        drop(short_lived);
    }
    drop(losing);
    is_served(&client, "behind");
    server.reports_when(|reports| {
        reports[0].transport.rdma_connections == 1
            && reports[0].stats.unfinished_puts == 0
            && reports[0].transport.protocol_errors == 0
    });
}

#[test]
#[ignore = "needs RDMA devices: scripts/test --rdma"]
fn first_calls_of_very_many_threads_do_not_wait_for_rdma_until_their_time_is_over() {
    // Links are made 8 at a time, so the last of many threads had no time left for anything when their turns came.
    const THREADS: usize = 200;
    let server = TestServer::start(&["--shm", "off"]);
    let client = Client::connect(&server.url("transport=auto&timeout=3s")).unwrap();
    client.put(b"key", b"value").unwrap();
    let begin = std::sync::Barrier::new(THREADS);
    let first_call = || {
        begin.wait();
        assert_eq!(client.get(b"key"), Ok(b"value".to_vec()));
        client.transport_for(b"key").unwrap()
    };
    let ways: Vec<&str> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(first_call)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    // Else nobody has waited.
    assert!(ways.contains(&"rdma") && ways.contains(&"tcp"), "{ways:?}");
}
