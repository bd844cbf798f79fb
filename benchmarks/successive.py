"""CPU time of successive cancellation on one thread, against komm and Sionna, and agreement with both.

    python benchmarks/successive.py

The two are compared where they are installed (`pip install komm sionna-no-rt`). Neither is a dependency; komm is under
the GPL, Sionna under the Apache licence.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from command import MANY, draw_bits, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    import tyro
    from numpy.typing import NDArray

    from polar.code.density_evolution import polarise
    from polar.code.index_sets import choose_sets, positions_within, spectrum, token_code
    from polar.code.memoryless import decode_tokens, draw_states, encode_tokens
    from polar.code.successive import conditional_llrs, decide
    from polar.code.transform import polar_transform
    from wm_env.common.arrays import Ints
    from wm_env.theory.capacity import block_law, pair_cover, partition_assignment


@dataclass(frozen=True)
class Options:
    """CPU time per frame on one thread, against the decoders of komm and Sionna where they are installed."""

    log_length: int = 10
    """log2 n."""
    frames: int = 1000
    """Frames of a batch."""
    repeats: int = 5
    """Batches timed; the fastest counts."""

    def run(self) -> None:
        n, rng = 2**self.log_length, np.random.default_rng(0)
        cover = pair_cover(64)
        code = token_code(block_law(cover, partition_assignment(cover, torch.arange(64) // 32, 2)))
        polarised = spectrum(code, self.log_length)
        sets = choose_sets(polarised, positions_within(polarised, 0.02))
        generator = torch.Generator().manual_seed(0)
        states = draw_states(code, self.frames, n, generator)
        messages, keys = (draw_bits(rng, self.frames, sets.message_bits) for _ in range(2))
        sent = encode_tokens(code, sets, states, messages, keys, rng)
        encoding = self.fastest(lambda: encode_tokens(code, sets, states, messages, keys, rng))
        decoding = self.fastest(lambda: decode_tokens(code, sets, sent.symbols, keys))
        print(f"n = {n}, {self.frames} frames, rate {sets.message_bits / n:.3f}; CPU time per frame, one thread")
        print(f"Corollary, V = 64: encode {encoding:.4f} ms, decode {decoding:.4f} ms")
        frozen, sent_words, llr = noisy_words(self.log_length, self.frames, rng)
        values = sent_words[:, frozen]
        ours = self.fastest(lambda: decide(llr, frozen, values))
        decided = polar_transform(decide(llr, frozen, values))
        wrong = (decided != sent_words).any(1).mean()
        print(f"rate 1/2 on Gaussian noise: decode {ours:.4f} ms, block error {wrong:.3f}")
        print(f"together: encode + decode {encoding + ours:.4f} ms")
        for name, compare in (("komm", self.komm), ("sionna", self.sionna)):
            if importlib.util.find_spec(name) is None:
                print(f"{name} is not installed: not compared")
            else:
                for label, theirs in compare(frozen, llr, decided):
                    print(f"{label}: {theirs:.4f} ms, {theirs / (encoding + ours):.1f} times ours")

    def fastest(self, call: Callable[[], object]) -> float:
        """Milliseconds of CPU time per frame."""
        times = []
        for _ in range(self.repeats):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        return min(times) / self.frames * 1e3

    def komm(self, frozen: NDArray[np.bool_], llr: NDArray[np.float64], decided: Ints) -> Iterator[tuple[str, float]]:
        """komm decodes one frame a call; its soft outputs are the LLRs of the message bits."""
        import komm

        decoder = komm.SCDecoder(komm.PolarCode(self.log_length, np.flatnonzero(frozen)))
        few = llr[:20]
        start = time.process_time()
        soft = np.array([decoder.decode(frame) for frame in few])
        spent = (time.process_time() - start) / len(few) * 1e3
        ours = conditional_llrs(few, decided[:20])[:, ~frozen]
        print(f"komm: decisions differ in {int(((soft < 0) != decided[:20, ~frozen]).sum())} bits of 20 frames")
        shared = np.abs(ours) < 250
        print(f"komm: largest difference of an LLR below 250: {np.abs(soft - ours)[shared].max():.1e}")
        yield "komm", spent

    def sionna(self, frozen: NDArray[np.bool_], llr: NDArray[np.float64], decided: Ints) -> Iterator[tuple[str, float]]:
        """Sionna counts an LLR positive for bit 1."""
        from sionna.phy.fec.polar import PolarSCDecoder

        decoder = PolarSCDecoder(np.flatnonzero(frozen), 2**self.log_length)
        received = torch.from_numpy(-llr).float()
        found = decoder(received).numpy()
        print(f"Sionna: {int((found != decided[:, ~frozen]).any(1).sum())} of {len(found)} frames differ")
        for batch in (1, 100, len(received)):
            part = received[:batch]
            decoder(part)
            start = time.process_time()
            decoder(part)
            yield f"Sionna, batch of {batch}", (time.process_time() - start) / batch * 1e3


def noisy_words(
    log_length: int, frames: int, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], Ints, NDArray[np.float64]]:
    """A rate-1/2 polar code on Gaussian noise: frozen mask, words V, LLRs of U."""
    n = 2**log_length
    frozen = np.zeros(n, dtype=np.bool_)
    frozen[np.argsort(-polarise(np.array([0.5, 0.0]), np.array([0.5, 0.5]), log_length).entropy)[: n // 2]] = True
    words = draw_bits(rng, frames, n)
    words[:, frozen] = 0
    sigma = 0.75
    received = 1 - 2.0 * polar_transform(words) + sigma * rng.standard_normal((frames, n))
    return frozen, words, 2 * received / sigma**2


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    within(options, log_length=(1, 20))
    # A batch is in memory at once.
    within(options, frames=(1, 2**26 >> options.log_length), repeats=MANY)
    torch.set_num_threads(1)
    options.run()


if __name__ == "__main__":
    run_benchmark(main)
