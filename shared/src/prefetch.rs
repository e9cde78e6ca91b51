//! Asking for bytes before they are read.
//!
//! Called by whatever copies many short ranges: the client's gather, and the shard that answers a read; and for long values by
//! [`crate::copy`]. A row that lies in no cache near the core costs some 50 ns to several hundred; asked for in time, many come at once.

/// Of a longer range only the start is asked for; the processor's own prefetcher follows a long copy by itself.
const MAX_BYTES: u64 = 512;
/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Asks for the cache lines of `length` bytes at `address`, without waiting. Any address will do: nothing is read that a program could
/// see, and nothing can fault. Of a range that doesn't start with a line the last one may be left out: the number of
/// lines depends on the length alone, so that for a known length there is no loop.
#[inline(always)]
pub fn prefetch(address: *const u8, length: u64) {
    for line in 0..(length.min(MAX_BYTES) as usize).div_ceil(LINE_BYTES) {
        prefetch_line(address.wrapping_add(line * LINE_BYTES));
    }
}

/// Asks for one cache line to be read, as [`prefetch`] does.
#[inline(always)]
pub(crate) fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is a hint that can't fault, and SSE is part of every x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast::<i8>());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of any address changes neither memory nor registers nor flags, and can't fault.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Asks for a cache line that will be written: other cores are told to let go of it now, not when it is stored to. Any address will do, as for
/// [`prefetch`].
#[inline(always)]
pub(crate) fn prefetch_line_to_write(address: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes neither memory nor registers nor flags and can't fault; a processor that doesn't know it takes it for no operation. The
    // intrinsic (`_MM_HINT_ET0`) makes an ordinary prefetch of it unless the whole program is built for processors that do.
    unsafe {
        std::arch::asm!("prefetchw [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
