"""vLLM's OffloadingConnector on a CPU, to run Lanner's tier in it: upstream's code, but for the worker that copies blocks between the engine's cache
and the offloading memory, which upstream has for GPUs only. For tests."""

from __future__ import annotations

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        assert self.blocks_per_chunk == 1, "a chunk is a block here"
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id, num_chunks=self.num_chunks, rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker,
        )
        return CopyWorker(kv_caches, region)


class CopyWorker(OffloadingWorker):
    """Copies when it's asked to."""

    def __init__(self, kv_caches, region) -> None:
        self.region, self.finished = region, []
        self.pairs = []
        for cache in kv_caches.tensors:
            pages = cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
            self.pairs.append((pages, region.create_next_worker_view(cache.page_size_bytes)))

    def submit_store(self, job_id, src_spec, dst_spec) -> bool:
        blocks, chunks = torch.from_numpy(src_spec.block_ids).long(), torch.from_numpy(dst_spec.block_ids).long()
        for pages, memory in self.pairs:
            memory[chunks] = pages[blocks]
        return self._done(job_id, len(blocks))

    def submit_load(self, job_id, src_spec, dst_spec) -> bool:
        chunks, blocks = torch.from_numpy(src_spec.block_ids).long(), torch.from_numpy(dst_spec.block_ids).long()
        for pages, memory in self.pairs:
            pages[blocks] = memory[chunks]
        return self._done(job_id, len(blocks))

    def _done(self, job_id: int, blocks: int) -> bool:
        size = blocks * sum(pages.shape[1] for pages, _ in self.pairs)
        self.finished.append(TransferResult(job_id, True, size, 0.0))
        return True

    def get_finished(self):
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids) -> None:
        """All are done."""

    def shutdown(self) -> None:
        self.pairs.clear()
        self.region.cleanup()
