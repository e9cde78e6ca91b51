//! How the connections of a shard share places of which there are fewer than all of them could use: each may hold half as many as are free. So one
//! alone has as many as it wants, and those that hold on to theirs leave some to whoever comes next (dynamic thresholds: Choudhury and Hahne,
//! IEEE/ACM Transactions on Networking 6(2), 1998).

/// Whether a connection that holds so many may take another of the `free` ones, where nobody can do without: one it may always.
#[inline]
#[must_use]
pub fn may_take_another(held: usize, free: usize) -> bool {
    free > 0 && held < (free / 2).max(1)
}

/// Whether a connection may keep the `held` ones that it has beside `free`, where what's in a place can be moved elsewhere: then some are
/// free at all times.
#[inline]
#[must_use]
pub fn may_keep(held: usize, free: usize) -> bool {
    held <= free / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 128;
    const MOST: usize = 32;

    /// Four clients that took no answers had all places, and everybody else waited until they were given up. Shows that one that comes then
    /// gets one, and that a client alone has as many as a connection can use.
    #[test]
    fn connections_that_take_nothing_leave_places_to_others() {
        for stalled in [1, 4, 32, 100] {
            let mut held = vec![0; stalled];
            let mut free = PLACES;
            for _ in 0..MOST {
                for held in &mut held {
                    if *held < MOST && may_take_another(*held, free) {
                        *held += 1;
                        free -= 1;
                    }
                }
            }
            assert!(may_take_another(0, free), "{free} are left by {stalled}");
            assert!(stalled > 1 || held[0] == MOST);
        }
        assert!(!may_take_another(0, 0));
    }

    /// Messages that wait behind a long put kept all of the shard's receives. Shows that any number of connections with any backlog leaves some.
    #[test]
    fn backlogs_leave_places_to_others() {
        for stalled in [1, 2, 7, 64, 1024] {
            let mut held = vec![0; stalled];
            let mut free = PLACES;
            for message in 0..stalled * 64 {
                // A message comes, and is moved if it's one too many.
                free -= 1;
                let held = &mut held[message % stalled];
                *held += 1;
                if !may_keep(*held, free) {
                    *held -= 1;
                    free += 1;
                }
                assert!(free > 0, "{stalled} hold all, after {message}");
            }
            assert!(stalled > 1 || held[0] >= PLACES / 3, "one alone has {held:?}");
        }
    }
}
