"""CPU time of successive cancellation on one thread, against komm and Sionna, and agreement with both.

    python benchmarks/successive.py

The two are compared where they are installed (`pip install komm sionna-no-rt`). Neither is a dependency; komm is under
the GPL, Sionna under the Apache licence.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from command import MANY, draw_bits, run_benchmark, within

from wm_env.common.command import quitting_on_interrupt

with quitting_on_interrupt(__name__):
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from polar.code.batches import decide
    from polar.code.density_evolution import polarise
    from polar.code.index_sets import choose_sets, positions_within, spectrum, token_code
    from polar.code.lists.passes import decode_paths
    from polar.code.memoryless import decode_tokens, draw_states, encode_tokens
    from polar.code.successive import conditional_llrs
    from polar.code.transform import polar_transform
    from wm_env.common.arguments import parse
    from wm_env.common.arrays import Ints
    from wm_env.common.foreign.imports import is_installed
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
    list_size: int = 8
    """Paths of the list decoders."""
    list_frames: int = 200
    """Frames of the list decoders."""

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
        self.compare()

    def compare(self) -> None:
        """A code of rate 1/2 on Gaussian noise; frozen bits are 0 and LLRs float32, as Sionna has them."""
        rng = np.random.default_rng(0)
        frozen, sent_words, llr = noisy_words(self.log_length, self.frames, rng)
        decided = decide(llr, frozen)
        wrong = (decided != sent_words[:, ~frozen]).any(1).mean()
        print(f"rate 1/2 on Gaussian noise: block error {wrong:.4f} of {self.frames} frames")
        for name, compare in (("komm", self.komm), ("sionna", self.sionna)):
            if not is_installed(name):
                print(f"{name} is not installed: not compared")
            else:
                compare(frozen, llr, sent_words)

    def fastest(self, call: Callable[[], object]) -> float:
        """Milliseconds of CPU time per frame of a batch of `frames`."""
        return self.fastest_of(call, self.frames)

    def fastest_of(self, call: Callable[[], object], frames: int) -> float:
        """Milliseconds of CPU time per frame of the fastest of some calls, after one that is not counted."""
        call()
        times = []
        for _ in range(self.repeats):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        return min(times) / frames * 1e3

    def komm(self, frozen: NDArray[np.bool_], llr: NDArray[np.float32], sent_words: Ints) -> None:
        """komm decodes one frame a call; its soft outputs are the LLRs of the message bits."""
        import komm

        decoder = komm.SCDecoder(komm.PolarCode(self.log_length, np.flatnonzero(frozen)))
        few = llr[:20].astype(np.float64)
        start = time.process_time()
        soft = np.array([decoder.decode(frame) for frame in few])
        spent = (time.process_time() - start) / len(few) * 1e3
        decided = decide(few, frozen)
        word = np.zeros(few.shape, dtype=np.uint8)
        word[:, ~frozen] = decided
        exact = conditional_llrs(few, word)[:, ~frozen]
        print(f"komm: decisions differ in {int(((soft < 0) != decided).sum())} bits of 20 frames")
        shared = np.abs(exact) < 250
        print(f"komm: largest difference of an exact LLR below 250: {np.abs(soft - exact)[shared].max():.1e}")
        ours = self.fastest(lambda: decide(few, frozen)) * self.frames / len(few)
        print(f"komm: {spent:.4f} ms a frame, {spent / ours:.0f} times ours")

    def sionna(self, frozen: NDArray[np.bool_], llr: NDArray[np.float32], sent_words: Ints) -> None:
        """Sionna counts an LLR positive for bit 1."""
        from sionna.phy.fec.polar import PolarSCDecoder, PolarSCLDecoder

        n, places = 2**self.log_length, np.flatnonzero(frozen)
        decoder = PolarSCDecoder(places, n)
        found = decoder(torch.from_numpy(-llr)).numpy()
        print(f"Sionna: {int((found != decide(llr, frozen)).any(1).sum())} of {len(found)} frames differ")
        for batch in sorted({1, 10, 100, 1000, len(llr)} & set(range(len(llr) + 1))):
            part = llr[:batch]
            theirs = self.fastest_of(lambda part=part: decoder(torch.from_numpy(-part)), batch)  # type: ignore[misc]
            ours = self.fastest_of(lambda part=part: decide(part, frozen), batch)  # type: ignore[misc]
            print(f"Sionna, SC, batch of {batch}: {theirs:.4f} ms a frame, ours {ours:.4f}: {theirs / ours:.0f} times")
        few, sent = llr[: self.list_frames], sent_words[: self.list_frames, ~frozen]
        nothing = np.zeros((len(few), len(places)), dtype=np.uint8)
        lists = PolarSCLDecoder(places, n, list_size=self.list_size)
        theirs_wrong = (lists(torch.from_numpy(-few)).numpy() != sent).any(1)
        ours_wrong = (decode_paths(few, frozen, nothing, self.list_size).free[:, 0] != sent).any(1)
        print(
            f"Sionna, list of {self.list_size}: {int(theirs_wrong.sum())} of {len(few)} frames wrong, "
            f"ours {int(ours_wrong.sum())}, by one of the two alone {int((theirs_wrong != ours_wrong).sum())}"
        )
        for batch in sorted({1, 10, len(few)}):
            part, none = few[:batch], nothing[:batch]
            theirs = self.fastest_of(lambda part=part: lists(torch.from_numpy(-part)), batch)  # type: ignore[misc]
            ours = self.fastest_of(
                lambda part=part, none=none: decode_paths(part, frozen, none, self.list_size),  # type: ignore[misc]
                batch,
            )
            print(
                f"Sionna, list, batch of {batch}: {theirs:.3f} ms a frame, ours {ours:.3f}: {theirs / ours:.0f} times"
            )


def noisy_words(
    log_length: int, frames: int, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], Ints, NDArray[np.float32]]:
    """A rate-1/2 polar code on Gaussian noise: frozen mask, words V, LLRs of U."""
    n = 2**log_length
    frozen = np.zeros(n, dtype=np.bool_)
    frozen[np.argsort(-polarise(np.array([0.5, 0.0]), np.array([0.5, 0.5]), log_length).entropy)[: n // 2]] = True
    words = draw_bits(rng, frames, n)
    words[:, frozen] = 0
    sigma = 0.75
    received = 1 - 2.0 * polar_transform(words) + sigma * rng.standard_normal((frames, n))
    return frozen, words, (2 * received / sigma**2).astype(np.float32)


def main() -> None:
    options = parse(Options, description=__doc__)
    within(options, log_length=(1, 20))
    # A batch is in memory at once.
    within(
        options,
        frames=(1, 2**26 >> options.log_length),
        repeats=MANY,
        list_size=(1, 1024),
        list_frames=(1, options.frames),
    )
    torch.set_num_threads(1)
    options.run()


if __name__ == "__main__":
    run_benchmark(main)
