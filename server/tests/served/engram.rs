//! Engram tables and sharded tensors in a real store.

use crate::support::{TestServer, slowed, transports};
use lanner_client::{
    Dtype, EngramConfig, EngramError, EngramSet, EngramStore, Freshness, RowFormat, RowIds, ShardedTensor,
    TensorError, TensorSpec,
};
use std::time::Duration;

const ROW: usize = 264;

fn config(layer: u32) -> EngramConfig {
    EngramConfig { layer, table_vocab_sizes: vec![17, 19, 23], row: RowFormat::Bytes(ROW as u64) }
}

/// A table whose every byte tells layer, head, row and place.
fn table(layer: u32, head: usize, rows: u64) -> Vec<u8> {
    (0..rows as usize * ROW)
        .map(|at| (at % 251) as u8 ^ (layer as u8) << 4 ^ (head as u8) << 2 ^ (at / ROW) as u8)
        .collect()
}

fn tables(layer: u32) -> Vec<Vec<u8>> {
    config(layer).table_vocab_sizes.iter().enumerate().map(|(head, rows)| table(layer, head, *rows)).collect()
}

fn expected(layer: u32, ids: &[i64]) -> Vec<u8> {
    let tables = tables(layer);
    let row = |(at, id): (usize, &i64)| tables[at % 3][*id as usize * ROW..(*id as usize + 1) * ROW].to_vec();
    ids.iter().enumerate().flat_map(row).collect()
}

#[test]
fn rows_are_looked_up_by_one_layer_and_by_many() {
    for shards in ["1", "2"] {
        let server = TestServer::start(&["--shards", shards]);
        for transport in transports() {
            let client = server.client(transport);
            let stores = [1, 14].map(|layer| EngramStore::new(client.clone(), config(layer)).unwrap());
            let ids = [3, 18, 22, 16, 0, 1];
            let row_ids = RowIds::new(&ids, [1, 2, 3]).unwrap();
            let missing = stores[0].lookup(row_ids).unwrap_err();
            assert_eq!(missing, EngramError::MissingTables { keys: stores[0].keys() });
            for (store, layer) in stores.iter().zip([1, 14]) {
                store.populate(&tables(layer)).unwrap();
                assert_eq!(store.lookup(row_ids).unwrap(), expected(layer, &ids));
            }
            let set = EngramSet::new(client, vec![config(1), config(14)]).unwrap();
            let mut rows = vec![0; 12 * ROW];
            for freshness in [Freshness::Lease, Freshness::Checked] {
                set.lookup_into(&[row_ids, row_ids], &mut rows, freshness).unwrap();
                assert_eq!(rows, [expected(1, &ids), expected(14, &ids)].concat());
            }
            assert_eq!(stores[0].remove_from_store(false), Ok(3));
            assert_eq!(stores[0].remove_from_store(false), Ok(0));
            // The other layer is not concerned.
            assert_eq!(stores[1].lookup(row_ids).unwrap(), expected(14, &ids));
            assert_eq!(stores[1].remove_from_store(true), Ok(3));
        }
    }
}

#[test]
fn populating_is_all_or_nothing() {
    let server = TestServer::start(&[]);
    let client = server.client("shm");
    let store = EngramStore::new(client.clone(), config(5)).unwrap();
    let short = vec![table(5, 0, 17), table(5, 1, 19), table(5, 2, 22)];
    assert!(matches!(store.populate(&short), Err(EngramError::TableShape { head: 2, .. })));
    client.put(b"engram:l5:h1", b"in the way").unwrap();
    assert!(store.populate(&tables(5)).is_err());
    let are_there = client.exists_batch(&store.keys()).unwrap();
    assert_eq!(are_there, [false, true, false], "what was written is taken back, what was there stays");
    assert!(matches!(store.remove_from_store(false), Err(EngramError::TableShape { head: 1, got: 10, .. })));
    assert_eq!(store.remove_from_store(true), Ok(1));
    store.populate(&tables(5)).unwrap();
    assert!(store.populate(&tables(5)).is_err(), "a second time without removing");
    let row_ids = RowIds::new(&[0, 0, 0], [1, 1, 3]).unwrap();
    assert_eq!(
        store.lookup(row_ids).unwrap(),
        expected(5, &[0, 0, 0]),
        "a refused second time leaves the first one's tables"
    );
}

#[test]
fn a_replaced_table_is_seen_at_once_when_checked_and_after_a_lease_when_not() {
    let lease = slowed(Duration::from_millis(300));
    let server = TestServer::start(&["--lease-ttl", &format!("{}ms", lease.as_millis())]);
    for transport in transports() {
        let client = server.client(transport);
        let store = EngramStore::new(client.clone(), config(6)).unwrap();
        store.remove_from_store(true).unwrap();
        store.populate(&tables(6)).unwrap();
        let ids = [1, 2, 3];
        let row_ids = RowIds::new(&ids, [1, 1, 3]).unwrap();
        assert_eq!(store.lookup(row_ids).unwrap(), expected(6, &ids));
        // Another client replaces the tables behind this one's back.
        let other = EngramStore::new(server.client(transport), config(6)).unwrap();
        assert_eq!(other.remove_from_store(false), Ok(3));
        other.populate(&tables(9)).unwrap();
        assert_eq!(store.lookup(row_ids).unwrap(), expected(6, &ids), "the old bytes, for the lease");
        let mut rows = vec![0; 3 * ROW];
        store.lookup_checked_into(row_ids, &mut rows).unwrap();
        assert_eq!(rows, expected(9, &ids));
        std::thread::sleep(lease + Duration::from_millis(50));
        assert_eq!(store.lookup(row_ids).unwrap(), expected(9, &ids));
        store.remove_from_store(true).unwrap();
    }
}

#[test]
fn threads_share_one_store() {
    let server = TestServer::start(&["--lease-ttl", "50ms"]);
    let store = EngramStore::new(server.client("shm"), config(2)).unwrap();
    store.populate(&tables(2)).unwrap();
    let until = std::time::Duration::from_millis(400);
    std::thread::scope(|scope| {
        for thread in 0..3_i64 {
            let store = &store;
            scope.spawn(move || {
                let clock = lanner_client::Clock;
                let end = clock.now().plus(until);
                let mut count = 0_i64;
                while clock.now() < end {
                    let ids = [(count + thread) % 17, count % 19, thread];
                    let rows = store.lookup(RowIds::new(&ids, [1, 1, 3]).unwrap()).unwrap();
                    assert_eq!(rows, expected(2, &ids));
                    count += 1;
                }
                assert!(count > 100);
            });
        }
    });
}

#[test]
fn a_tensor_written_by_one_group_is_read_by_another() {
    let server = TestServer::start(&["--shards", "2"]);
    for transport in transports() {
        let client = server.client(transport);
        let shape = [12, 10];
        let spec = TensorSpec::evenly("w", Dtype::Int16, &shape, 1, 4).unwrap();
        let tensor = ShardedTensor::create(client.clone(), spec.clone()).unwrap();
        let whole: Vec<u8> = (0..120_i16).flat_map(i16::to_le_bytes).collect();
        // Each rank's columns, by the plain way.
        let columns = |start: usize, end: usize| -> Vec<u8> {
            (0..12).flat_map(|row| whole[(row * 10 + start) * 2..(row * 10 + end) * 2].to_vec()).collect()
        };
        let parts = [columns(0, 3), columns(3, 6), columns(6, 8), columns(8, 10)];
        let mut all = tensor.whole().unwrap();
        let mut read = vec![0; 240];
        for (part, bytes) in parts.iter().enumerate() {
            let missing =
                TensorError::MissingParts { name: "w".into(), parts: (part..4).collect(), count: 4 };
            assert_eq!(all.read_into(&mut read), Err(missing));
            tensor.write_part(part, bytes).unwrap();
        }
        all.read_into(&mut read).unwrap();
        assert_eq!(read, whole);
        // The same to registered memory, which has to fit as well.
        read.fill(0);
        all.read_into_registered(&mut client.register(&mut read).unwrap()).unwrap();
        assert_eq!(read, whole);
        let mut short = vec![0; 239];
        let refused = all.read_into_registered(&mut client.register(&mut short).unwrap());
        assert_eq!(refused, Err(TensorError::Output { expected: 240, got: 239 }));
        // Three ranks along the other axis, twice each: the second time through the kept snapshot.
        for rank in 0..3 {
            let mut slice = tensor.partition(0, 3, rank).unwrap();
            for _ in 0..2 {
                let mut read = vec![0; slice.bytes() as usize];
                slice.read_into(&mut read).unwrap();
                assert_eq!(read, whole[rank * 80..(rank + 1) * 80]);
            }
        }
        let reopened = ShardedTensor::open(client.clone(), "w").unwrap();
        assert_eq!(reopened.spec(), &spec);
        let other = TensorSpec { dtype: Dtype::Float16, ..spec.clone() };
        assert!(matches!(ShardedTensor::create(client.clone(), other), Err(TensorError::Dtype { .. })));
        let other = TensorSpec::evenly("w", Dtype::Int16, &shape, 0, 4).unwrap();
        assert!(matches!(ShardedTensor::create(client.clone(), other), Err(TensorError::Differs { .. })));
        assert!(matches!(
            tensor.write_part(0, &[0; 3]),
            Err(TensorError::PartSize { part: 0, expected: 72, got: 3, .. })
        ));
        assert!(matches!(tensor.slice(1, 4, 11), Err(TensorError::OutOfBounds { .. })));
        assert!(tensor.remove().unwrap());
        assert!(matches!(ShardedTensor::open(client, "w"), Err(TensorError::NoTensor { .. })));
    }
}
